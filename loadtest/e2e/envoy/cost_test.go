package envoy

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// What the picker adds to a request: its processor time, and the time until the whole answer is there
// beside Envoy alone. It prints a table, and fails only where a request does: the machine decides
// about the figures.
func TestCost_OfARequest(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-envoy runs it")
	}
	f := fleet{}
	f.start(t, "both", 2, "--time-scale", "0")
	p := startPicker(t, f)
	backend := startPicker(t, f)
	alone := ofPool(t, p, f["both"])
	alone.Pickers = nil
	headersOnly := standalone(t, p)
	headersOnly.Answers = "NONE"
	kept := standalone(t, p)
	kept.Requests, kept.Answers = "BUFFERED", "STREAMED"
	keptHeads := kept
	keptHeads.Answers = "NONE"
	pairs := startPairs(t, "--time-scale", "0", "--max-model-len", "131072")
	ofPairs := startPicker(t, pairs)
	t.Logf("%-8s %-34s %10s %10s %16s", "prompt", "way", "p50", "p99", "picker's CPU")
	for _, size := range []int{2 << 10, 220 << 10} {
		for _, way := range []struct {
			name string
			setup
			picker *picker
		}{
			{"Envoy alone", alone, p}, {"Tandem as the plain backend", plainBackend(t, backend), backend}, {"picker, answers shown to it", standalone(t, p), p}, {"picker, heads of answers alone", headersOnly, p},
			{"picker, bodies kept by Envoy", kept, p}, {"picker, that and heads of answers", keptHeads, p}, {"picker, of pairs", standalone(t, ofPairs), ofPairs},
		} {
			e := startProxy(t, way.setup)
			half, most, cpu := measure(t, e.url, way.picker, size)
			t.Logf("%-8s %-34s %10v %10v %16v", fmt.Sprint(size>>10, " KB"), way.name, half, most, cpu)
		}
	}
}

// measure sends requests from four clients, and returns quantiles of their duration and the
// picker's processor time for each.
func measure(t *testing.T, gateway string, p *picker, size int) (half, most, cpu time.Duration) {
	t.Helper()
	const clients, each = 4, 100
	text := words(size)
	var mu sync.Mutex
	var took []time.Duration
	round := func(requests int) {
		var under sync.WaitGroup
		for c := range clients {
			under.Go(func() {
				for n := range requests {
					began := time.Now()
					if a := send(t.Context(), gateway+chatPath, chat(c*each+n, text, streamed)); a.status != http.StatusOK || a.err != nil {
						t.Errorf("%d, %v: %.200s", a.status, a.err, a.body)
					}
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		under.Wait()
	}
	round(10)
	took = nil
	before := processorTime(t, p)
	round(each)
	cpu = (processorTime(t, p) - before) / (clients * each)
	slices.Sort(took)
	return took[len(took)/2].Round(10 * time.Microsecond), took[len(took)*99/100].Round(10 * time.Microsecond), cpu.Round(10 * time.Microsecond)
}

// processorTime is what the picker's process has used of processors (proc(5), stat: fields 14 and
// 15, in hundredths of a second).
func processorTime(t *testing.T, p *picker) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
