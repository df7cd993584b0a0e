// Package load sends requests to a gateway while a test does something to it.
package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Run is a running `tandem-lab load`.
type Run struct {
	Ended            chan struct{} // closed at its end
	cmd              *exec.Cmd
	rps              int
	took             time.Duration // it and the rest are read after Ended
	report, progress bytes.Buffer
	err              error
}

// Start sends rps requests a second for a while.
func Start(t testing.TB, url string, rps int, duration time.Duration) *Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), duration+90*time.Second)
	cmd := exec.CommandContext(ctx, filepath.Join(process.Root(t), "bin/tandem-lab"), "load",
		"--url", url, "--rps", fmt.Sprint(rps), "--duration", duration.String(), "--json", "-")
	l := &Run{cmd: cmd, rps: rps, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &l.report, &l.progress
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	began := time.Now()
	go func() {
		l.err = cmd.Wait()
		l.took = min(time.Since(began), duration)
		close(l.Ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-l.Ended
	})
	return l
}

// Finish ends the load, which must still go on, and checks what came until then.
func (l *Run) Finish(t testing.TB) {
	t.Helper()
	select {
	case <-l.Ended:
		t.Error("the load ended before all was done to the gateway")
	default:
	}
	_ = l.cmd.Process.Signal(os.Interrupt) // fails if it has ended
	l.Check(t)
}

// Check waits for the end and demands that about as many requests as expected
// arrived and every one of them was answered, but those that Finish interrupted.
func (l *Run) Check(t testing.TB) {
	t.Helper()
	<-l.Ended
	if l.err != nil {
		t.Fatalf("tandem-lab load: %v\n%s\n%s", l.err, l.report.String(), l.progress.String())
	}
	var result struct {
		Requests struct {
			Arrived     int `json:"arrived"`
			OK          int `json:"ok"`
			Failed      int `json:"failed"`
			Interrupted int `json:"interrupted"`
		} `json:"requests"`
		Samples json.RawMessage `json:"error_samples"`
	}
	if err := json.Unmarshal(l.report.Bytes(), &result); err != nil {
		t.Fatalf("tandem-lab load printed %s: %v", l.report.String(), err)
	}
	t.Logf("%+v", result.Requests)
	if result.Requests.Failed != 0 || result.Requests.OK+result.Requests.Interrupted != result.Requests.Arrived {
		t.Errorf("%d of %d requests failed: %s", result.Requests.Failed, result.Requests.Arrived, result.Samples)
	}
	if atOnce := 2 * l.rps; result.Requests.Interrupted > atOnce { // an answer takes half a second
		t.Errorf("%d requests were still under way at the end, where %d may be", result.Requests.Interrupted, atOnce)
	}
	if expected := int(l.took.Seconds()) * l.rps; result.Requests.Arrived < expected/2 {
		t.Errorf("only %d requests where some %d were due", result.Requests.Arrived, expected)
	}
}
