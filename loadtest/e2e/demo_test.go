package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
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

// TestDemoWith: the demo starts real servers of other projects beside the gateway, shows that each
// has what it is for, and ends them when it ends.
func TestDemoWith(t *testing.T) {
	parts := filepath.Join(process.Root(t), ".cache/e2e")
	with := "redis,jaeger"
	if _, err := os.Stat(filepath.Join(parts, "prometheus")); err == nil {
		with = "redis,prometheus,jaeger"
	} else {
		t.Log("no Prometheus here: it comes from Debian")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	demo := exec.CommandContext(ctx, "../../bin/tandem-lab", "demo", "--once", "--listen", freeAddress(t), "--admin", freeAddress(t), "--with", with)
	writes := t.TempDir()
	demo.Env = append(os.Environ(), "PATH="+parts+":"+os.Getenv("PATH"), "TMPDIR="+writes)
	printed, err := demo.CombinedOutput()
	t.Logf("%s", printed)
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]string{
		"redis":      `(?m)^redis +(\S+), with [1-9]\d* keys of the gateway`,
		"prometheus": `(?m)^prometheus http://(\S+), scrapes 5 targets and evaluates [1-9]\d+ rules$`,
		"jaeger":     `(?m)^jaeger +http://([^/]+)/trace/[0-9a-f]{32}: the long prompt, [1-9]\d* spans$`,
	}
	for _, name := range strings.Split(with, ",") {
		found := regexp.MustCompile(wanted[name]).FindSubmatch(printed)
		if found == nil {
			t.Errorf("%s is not shown at work", name)
			continue
		}
		if conn, err := net.Dial("tcp", string(found[1])); err == nil {
			_ = conn.Close()
			t.Errorf("%s goes on after the demo", name)
		}
	}
	if left, err := os.ReadDir(writes); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v (%v)", left, err)
	}
}

// TestDemoWithout: what is not on the PATH is named, and nothing is started.
func TestDemoWithout(t *testing.T) {
	demo := exec.CommandContext(t.Context(), filepath.Join(process.Root(t), "bin/tandem-lab"), "demo", "--with", "redis,prometheus,jaeger")
	demo.Env = append(os.Environ(), "PATH="+t.TempDir())
	printed, err := demo.CombinedOutput()
	if want := "not on the PATH: redis-server, prometheus, jaeger; "; err == nil || !strings.Contains(string(printed), want) || strings.Contains(string(printed), "pid") {
		t.Errorf("%v, want %q and nothing started:\n%s", err, want, printed)
	}
}
