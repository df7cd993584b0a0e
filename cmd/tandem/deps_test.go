package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The gateway's program has nothing in it of what judges it.
func TestProgram_LinksNothingThatJudgesIt(t *testing.T) {
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(listed))
	if len(packages) < 100 {
		t.Fatalf("go list names only %d packages", len(packages))
	}
	for _, p := range packages {
		for _, judges := range []string{
			"github.com/tandem-gateway/tandem/loadtest", "github.com/tandem-gateway/tandem/cmd/tandem-lab",
			"github.com/Shopify/toxiproxy", "github.com/vbauerster/mpb",
		} {
			if p == judges || strings.HasPrefix(p, judges+"/") {
				t.Errorf("%s is in the gateway's program", p)
			}
		}
	}
}
