// Package load sends requests to a gateway while a test does something to it.
package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Run is a running `tandem load`.
type Run struct {
	Ended            chan struct{} // closed at its end
	expected         int           // requests
	report, progress bytes.Buffer  // read after ended, like err
	err              error
}

// Start sends rps requests a second for a while.
func Start(t testing.TB, url string, rps int, duration time.Duration) *Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), duration+90*time.Second)
	cmd := exec.CommandContext(ctx, filepath.Join(process.Root(t), "bin/tandem"), "load",
		"--url", url, "--rps", fmt.Sprint(rps), "--duration", duration.String(), "--json", "-")
	l := &Run{expected: int(duration.Seconds()) * rps, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &l.report, &l.progress
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		l.err = cmd.Wait()
		close(l.Ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-l.Ended
	})
	return l
}

// Check waits for the end and demands that about as many requests as expected
// arrived and every one of them was answered.
func (l *Run) Check(t testing.TB) {
	t.Helper()
	<-l.Ended
	if l.err != nil {
		t.Fatalf("tandem load: %v\n%s\n%s", l.err, l.report.String(), l.progress.String())
	}
	var result struct {
		Requests struct {
			Arrived int `json:"arrived"`
			OK      int `json:"ok"`
			Failed  int `json:"failed"`
		} `json:"requests"`
		Samples json.RawMessage `json:"error_samples"`
	}
	if err := json.Unmarshal(l.report.Bytes(), &result); err != nil {
		t.Fatalf("tandem load printed %s: %v", l.report.String(), err)
	}
	t.Logf("%+v", result.Requests)
	if result.Requests.Failed != 0 || result.Requests.OK != result.Requests.Arrived {
		t.Errorf("%d of %d requests failed: %s", result.Requests.Failed, result.Requests.Arrived, result.Samples)
	}
	if result.Requests.Arrived < l.expected/2 {
		t.Errorf("only %d requests where some %d were due", result.Requests.Arrived, l.expected)
	}
}
