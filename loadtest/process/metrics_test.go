package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// A metric is summed over the series that have all labels asked for; another metric whose name
// begins alike is not counted in.
func TestMetrics_SumsTheSeriesThatHaveTheLabels(t *testing.T) {
	m := Metrics("# HELP m counts.\nm{a=\"x\",b=\"y\"} 3\nm{a=\"x\",b=\"z\"} 4\nm_total 9\nn 2.5\nn_bad x\n")
	for _, c := range []struct {
		want   float64
		name   string
		labels []string
	}{{7, "m", nil}, {3, "m", []string{`a="x"`, `b="y"`}}, {0, "m", []string{`a="q"`}}, {2.5, "n", nil}, {0, "n_bad", nil}} {
		if got := m.Sum(c.name, c.labels...); got != c.want {
			t.Errorf("%s %v: %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

// What a gateway answers is read again until all its servers are up; an answer that is no metrics
// page is one without servers.
func TestAwaitServers_WaitsForAllOfThem(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var answers atomic.Int64
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := answers.Add(1)
		switch {
		case r.URL.Path != "/metrics":
			t.Errorf("asked for %s", r.URL.Path)
		case asked == 1:
			http.Error(w, "tandem_server_up 2", http.StatusServiceUnavailable)
		case asked == 4:
			cancel()
			fallthrough
		default:
			_, _ = fmt.Fprintf(w, "tandem_server_up{server=\"a\"} 1\ntandem_server_up{server=\"b\"} %d\n", min(asked-2, 1))
		}
	}))
	defer gateway.Close()
	admin := gateway.Listener.Addr().String()
	if err := AwaitServers(ctx, admin, 2); err != nil || answers.Load() != 3 {
		t.Errorf("%v after %d answers", err, answers.Load())
	}
	if err := AwaitServers(ctx, admin, 3); !errors.Is(err, context.Canceled) || answers.Load() != 4 {
		t.Errorf("a third server: %v after %d answers", err, answers.Load())
	}
}

// Processes write to the file that is named, to none where none is, and a file that cannot be
// created is an error.
func TestCreateLog_WithoutAPathNothingIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, p := range []string{path, ""} {
		log, err := CreateLog(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.WriteString("a line\n"); err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != "a line\n" {
		t.Errorf("%q, %v", kept, err)
	}
	if _, err := CreateLog(filepath.Join(path, "below")); err == nil || !strings.Contains(err.Error(), "log") {
		t.Errorf("below a file: %v", err)
	}
}
