package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestKillPrefill: a prefill server of the demo is killed under load, and no request
// fails.
func TestKillPrefill(t *testing.T) {
	listen, admin := freeAddress(t), freeAddress(t)
	demo := start(t, "demo", "bin/tandem", "demo", "--listen", listen, "--admin", admin)
	waitFor(t, demo, "the demo to be ready", readyWithin, answers("http://"+admin+"/readyz"))
	victim := prefillPID(t, demo)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	load := exec.CommandContext(ctx, "../../bin/tandem", "load",
		"--url", "http://"+listen, "--rps", "20", "--duration", "30s", "--json", "-")
	var report, progress bytes.Buffer
	load.Stdout, load.Stderr = &report, &progress
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	var loadErr error // set before ended is closed
	ended := make(chan struct{})
	go func() {
		loadErr = load.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})

	const before = 100 // requests, of some 600
	waitFor(t, demo, fmt.Sprintf("%d answered requests", before), 30*time.Second, func() error {
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
	<-ended
	if loadErr != nil {
		t.Fatalf("tandem load: %v\n%s\n%s", loadErr, report.String(), progress.String())
	}
	var result struct {
		Requests struct {
			Arrived int `json:"arrived"`
			OK      int `json:"ok"`
			Failed  int `json:"failed"`
		} `json:"requests"`
		Samples json.RawMessage `json:"error_samples"`
	}
	if err := json.Unmarshal(report.Bytes(), &result); err != nil {
		t.Fatalf("tandem load printed %s: %v", report.String(), err)
	}
	t.Logf("%+v", result.Requests)
	if result.Requests.Failed != 0 || result.Requests.OK != result.Requests.Arrived {
		t.Errorf("%d of %d requests failed: %s", result.Requests.Failed, result.Requests.Arrived, result.Samples)
	}
	if result.Requests.Arrived < 300 {
		t.Errorf("only %d requests in 30 s at 20 a second", result.Requests.Arrived)
	}
}

// prefillPID reads the process ID of a prefill server from what the demo prints.
func prefillPID(t *testing.T, demo *process) int {
	t.Helper()
	line := regexp.MustCompile(`(?mi)^.*prefill.*pid[ =:]+(\d+)`)
	var pid int
	waitFor(t, demo, "the PID of a prefill server in the demo's output", readyWithin, func() error {
		found := line.FindStringSubmatch(demo.output.String())
		if found == nil {
			return fmt.Errorf("not in %q", demo.output)
		}
		var err error
		pid, err = strconv.Atoi(found[1])
		return err
	})
	return pid
}

// answered reads from the gateway's metrics how many requests it has answered.
func answered(metrics string) (int, error) {
	res, err := http.Get(metrics)
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
