package e2e

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/load"
	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestKillPrefill: a prefill server of the demo is killed under load, and no request
// fails.
func TestKillPrefill(t *testing.T) {
	listen, admin := freeAddress(t), freeAddress(t)
	demo := start(t, "demo", "bin/tandem-lab", "demo", "--listen", listen, "--admin", admin)
	waitFor(t, demo, "the demo to be ready", readyWithin, answers("http://"+admin+"/readyz"))
	victim := prefillPID(t, demo)

	run := load.Start(t, "http://"+listen, 20, 30*time.Second)
	const before = 100 // requests, of some 600
	waitFor(t, demo, fmt.Sprintf("%d answered requests", before), readyWithin, func() error {
		n, err := answered("http://" + admin + "/metrics")
		if err == nil && n < before {
			err = fmt.Errorf("%d so far", n)
		}
		return err
	})
	t.Logf("killing prefill server %d", victim)
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	run.Check(t)
}

// prefillPID reads the process ID of a prefill server from what the demo prints.
func prefillPID(t *testing.T, demo *process.Process) int {
	t.Helper()
	line := regexp.MustCompile(`(?mi)^.*prefill.*pid[ =:]+(\d+)`)
	var pid int
	waitFor(t, demo, "the PID of a prefill server in the demo's output", readyWithin, func() error {
		found := line.FindStringSubmatch(demo.Output())
		if found == nil {
			return fmt.Errorf("not in %q", demo.Output())
		}
		var err error
		pid, err = strconv.Atoi(found[1])
		return err
	})
	return pid
}

// answered reads from the gateway's metrics how many requests it has answered.
func answered(metrics string) (int, error) {
	res, err := client.Get(metrics)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, found := range regexp.MustCompile(`(?m)^tandem_requests_total\{.*\} (\S+)$`).FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return int(total), nil
}
