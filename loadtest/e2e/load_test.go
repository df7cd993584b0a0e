package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// loadRun is a running `tandem load`.
type loadRun struct {
	expected         int           // requests
	ended            chan struct{} // closed at its end
	report, progress bytes.Buffer  // read after ended, like err
	err              error
}

// startLoad sends rps requests a second for a while.
func startLoad(t *testing.T, url string, rps int, duration time.Duration) *loadRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), duration+90*time.Second)
	cmd := exec.CommandContext(ctx, "../../bin/tandem", "load",
		"--url", url, "--rps", fmt.Sprint(rps), "--duration", duration.String(), "--json", "-")
	l := &loadRun{expected: int(duration.Seconds()) * rps, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &l.report, &l.progress
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		l.err = cmd.Wait()
		close(l.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-l.ended
	})
	return l
}

// check waits for the end and demands that about as many requests as expected
// arrived and every one of them was answered.
func (l *loadRun) check(t *testing.T) {
	t.Helper()
	<-l.ended
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
