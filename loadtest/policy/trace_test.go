package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestReadTrace_RefusesWhatIsNoTrace(t *testing.T) {
	const row = `{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}`
	for text, want := range map[string]string{
		"":             "no requests",
		"{":            "line 1",
		row + "\nnope": "line 2",
		row + "\n" + strings.Replace(row, "3000", "0", 1): "order of time",
		strings.Replace(row, "600", "0", 1):               "at least 1",
		strings.Replace(row, "600", "1100", 1):            "want 3",
	} {
		if _, err := ReadTrace(strings.NewReader(text), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	trace, err := ReadTrace(strings.NewReader(row+"\n\n"+row), 0)
	if err != nil || len(trace.Requests) != 2 || trace.Blocks != 2 || trace.Requests[0].Stamp != 0 {
		t.Errorf("read %+v, %v", trace, err)
	}
}

func TestTrace_IsTheOneThatWeKnow(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Requests) != 12_031 || trace.Blocks != 182_790 {
		t.Errorf("%d requests, %d blocks", len(trace.Requests), trace.Blocks)
	}
	tenths := make([]int, 10)
	for _, d := range trace.lengthDeciles() {
		tenths[d]++
	}
	for k, n := range tenths {
		if n < 1190 || n > 1215 {
			t.Errorf("tenth %d has %d requests", k, n)
		}
	}
}

func TestTrace_ArrivalsKeepToTheirSteps(t *testing.T) {
	trace := readShort(t)
	at := trace.arrivals(2, rand.New(rand.NewPCG(1, 1)))
	if !slices.IsSorted(at) {
		t.Error("arrivals are not in order")
	}
	for i, r := range trace.Requests {
		if at[i]*2 < r.Stamp || at[i]*2 > r.Stamp+traceStep {
			t.Fatalf("request %d of stamp %f arrives at %f at twice the speed", i, r.Stamp, at[i])
		}
	}
}

func TestTrace_SiblingsShareAllButTheirLastBlock(t *testing.T) {
	trace := readShort(t)
	burst := trace.withBursts(30, 8)
	bursts := 0
	for i, r := range burst.Requests {
		if i == 0 || int(r.Blocks[len(r.Blocks)-1]) < trace.Blocks {
			continue
		}
		first := burst.Requests[i-1]
		n := len(r.Blocks) - 1
		if r.Stamp != first.Stamp || len(first.Blocks) != len(r.Blocks) || !slices.Equal(r.Blocks[:n], first.Blocks[:n]) || first.Blocks[n] == r.Blocks[n] {
			t.Fatalf("request %d is no sibling of the one before", i)
		}
		bursts++
	}
	if bursts == 0 || bursts%7 != 0 || len(burst.Requests) != len(trace.Requests)+bursts {
		t.Errorf("%d siblings among %d requests", bursts, len(burst.Requests))
	}
	if trace.Blocks == burst.Blocks || readShort(t).Requests[1].Blocks[0] != trace.Requests[1].Blocks[0] {
		t.Error("the trace itself changed, or no block is new")
	}
}
