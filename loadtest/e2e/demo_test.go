package e2e

import (
	"context"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

// TestDemoOnce: what a newcomer sees first ends by itself, with an answer and the
// names of two different servers.
func TestDemoOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	demo := exec.CommandContext(ctx, "../../bin/tandem-lab", "demo", "--once", "--listen", freeAddress(t), "--admin", freeAddress(t))
	printed, err := demo.CombinedOutput()
	t.Logf("%s", printed)
	if err != nil {
		t.Fatal(err)
	}
	answered := regexp.MustCompile(`(?m)^answered +"(.+)"$`).FindSubmatch(printed)
	prefill := regexp.MustCompile(`(?m)^prefill +(\S+)$`).FindSubmatch(printed)
	decode := regexp.MustCompile(`(?m)^decode +(\S+)$`).FindSubmatch(printed)
	if answered == nil || prefill == nil || decode == nil || string(prefill[1]) == string(decode[1]) {
		t.Error("no answer, or not served by a pair")
	}
}
