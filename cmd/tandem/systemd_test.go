package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The unit for systemd starts the gateway with flags that there are, and leaves it the time of its drain.
func TestSystemd_TheUnitFitsTheGateway(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/tandem.service")
	if err != nil {
		t.Fatal(err)
	}
	value := func(key string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + key + `=(.+)$`).FindStringSubmatch(string(unit))
		if found == nil {
			t.Fatalf("the unit has no %s", key)
		}
		return found[1]
	}
	args, ours := strings.CutPrefix(value("ExecStart"), "/usr/local/bin/tandem ")
	command, rest, err := rootCommand().Find(strings.Fields(args))
	if err != nil || !ours || command.Name() != "serve" {
		t.Fatalf("ExecStart is %q: %v", value("ExecStart"), err)
	}
	if err := command.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	needed := time.Duration(0)
	for _, flag := range []string{"drain-delay", "drain-timeout"} {
		took, err := time.ParseDuration(command.Flag(flag).Value.String())
		if err != nil {
			t.Fatal(err)
		}
		needed += took
	}
	if seconds, err := strconv.Atoi(value("TimeoutStopSec")); err != nil || time.Duration(seconds)*time.Second <= needed {
		t.Errorf("TimeoutStopSec is %q, and a drain takes %v", value("TimeoutStopSec"), needed)
	}
}
