package loadtest

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const mooncakeTrace = "traces/mooncake_conversation.jsonl"

func TestReadTrace_TheMooncakeConversation(t *testing.T) {
	rows, err := readTraceFile(mooncakeTrace, 0)
	if err != nil {
		t.Fatal(err)
	}
	var input, output int
	blocks := map[uint64]bool{}
	for _, row := range rows {
		input += row.InputTokens
		output += row.OutputTokens
		for _, id := range row.HashIDs {
			blocks[id] = true
		}
	}
	mean := func(sum int) int { return int(math.Round(float64(sum) / float64(len(rows)))) }
	// The figures of kvcache-ai/Mooncake:FAST25-release/README.md.
	if len(rows) != 12_031 || mean(input) != 12_035 || mean(output) != 343 || len(blocks) != 182_790 {
		t.Errorf("%d rows, mean %d in, %d out, %d blocks", len(rows), mean(input), mean(output), len(blocks))
	}
	if some, err := readTraceFile(mooncakeTrace, 5); err != nil || len(some) != 5 {
		t.Errorf("limit 5: %d rows, %v", len(some), err)
	}
}

func TestReadTrace_RefusesWhatItCannotReplay(t *testing.T) {
	const good = `{"timestamp": 3000, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}` + "\n"
	if _, err := readTrace(strings.NewReader(good+"\n"+good), 0); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":          {"", "no requests"},
		"not JSON":       {good + "timestamp,3\n", "line 2"},
		"back in time":   {good + strings.Replace(good, "3000", "2999", 1), "line 2: timestamp 2999 after 3000"},
		"no input":       {strings.Replace(good, "513", "0", 1), "input_length 0"},
		"no output":      {strings.Replace(good, "5,", "0,", 1), "output_length 0"},
		"too few ids":    {strings.Replace(good, "[0, 1]", "[0]", 1), "1 hash_ids for 513 tokens: want 2"},
		"too many ids":   {strings.Replace(good, "513", "512", 1), "2 hash_ids for 512 tokens: want 1"},
		"line too long":  {strings.Repeat(" ", maxTraceLine+1), "too long"},
		"ids are no ids": {strings.Replace(good, "[0, 1]", `["a", "b"]`, 1), "line 1"},
	} {
		if _, err := readTrace(strings.NewReader(c.text), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
}

func TestTraceTimes_SpreadWithinTheStep(t *testing.T) {
	stamps := []int64{500, 500, 500, 3500, 4000, 4000, 60_000, 60_000}
	var rows []traceRow
	for _, ms := range stamps {
		rows = append(rows, traceRow{TimestampMS: ms})
	}
	// Where each may fall, in ms since the first stamp: up to the next stamp, at most a step.
	until := []int64{3000, 3000, 3000, 3500, 6500, 6500, 62_500, 62_500}
	for _, scale := range []float64{1, 0.1, 3} {
		times := traceTimes(rows, scale, newRand(5, arrivalStream))
		if !slices.IsSorted(times) {
			t.Errorf("scale %v: %v is not in order", scale, times)
		}
		for i, at := range times {
			ms := at.Seconds() * 1000 / scale
			if ms < float64(stamps[i]-500)-0.01 || ms > float64(until[i])+0.01 {
				t.Errorf("scale %v: row %d at %v ms, want %d to %d", scale, i, ms, stamps[i]-500, until[i])
			}
		}
		if times[0] == times[1] || times[1] == times[2] {
			t.Errorf("scale %v: rows of one stamp stay together: %v", scale, times)
		}
	}
}

func TestTraceTimes_TheMooncakeConversationIsUniform(t *testing.T) {
	rows, err := readTraceFile(mooncakeTrace, 0)
	if err != nil {
		t.Fatal(err)
	}
	times := traceTimes(rows, 1, newRand(1, arrivalStream))
	if !slices.IsSorted(times) {
		t.Fatal("arrivals go back in time")
	}
	third := [3]int{} // of the step of 3 s
	for i, at := range times {
		in := at - time.Duration(rows[i].TimestampMS)*time.Millisecond
		third[min(int(3*in/traceStep), 2)]++
	}
	for _, n := range third {
		if share := float64(n) / float64(len(times)); share < 0.32 || share > 0.347 {
			t.Errorf("thirds of the step hold %v of %d arrivals", third, len(times))
		}
	}
}

func TestTraceWorkload_CountsWhatEarlierPromptsHad(t *testing.T) {
	rows := []traceRow{
		{InputTokens: 1000, OutputTokens: 1, HashIDs: []uint64{1, 2}},
		{InputTokens: 1200, OutputTokens: 1, HashIDs: []uint64{1, 3, 4}},
		{InputTokens: 1000, OutputTokens: 1, HashIDs: []uint64{1, 2}},
		{InputTokens: 1500, OutputTokens: 1, HashIDs: []uint64{5, 2, 1}},
	}
	w := &traceWorkload{rows: rows, seen: make(map[uint64]struct{})}
	for i, want := range []int{0, 512, 1000, 0} {
		turn := w.next(noon)
		if turn.repeated != want || turn.promptTokens != rows[i].InputTokens {
			t.Errorf("row %d: %d of %d tokens are repeated, want %d", i, turn.repeated, turn.promptTokens, want)
		}
		w.answered(turn, nil, nil, noon)
	}
}

func TestTraceWorkload_SharedIDsAreSharedBytes(t *testing.T) {
	rows, err := readTraceFile(mooncakeTrace, 250)
	if err != nil {
		t.Fatal(err)
	}
	w := &traceWorkload{rows: rows}
	texts := make([][]byte, len(rows))
	for i, row := range rows {
		turn := w.next(time.Time{})
		if turn.outputTokens != row.OutputTokens || turn.question.tokens != row.InputTokens {
			t.Fatalf("row %d asks for %d, %d tokens", i, turn.question.tokens, turn.outputTokens)
		}
		texts[i] = []byte(turn.messages(1)[0].Content)
		if got := len(bytes.Fields(texts[i])); got != row.InputTokens {
			t.Fatalf("row %d has %d words, want %d", i, got, row.InputTokens)
		}
	}
	deepest := 0
	for a := 1; a < len(rows); a++ {
		// The row before, and the earlier row that shares most with this one.
		closest := 0
		for b := range a {
			if commonPrefix(rows[a].HashIDs, rows[b].HashIDs) > commonPrefix(rows[a].HashIDs, rows[closest].HashIDs) {
				closest = b
			}
		}
		for _, b := range []int{a - 1, closest} {
			same := commonPrefix(rows[a].HashIDs, rows[b].HashIDs)
			deepest = max(deepest, same)
			checkShared(t, rows[a], rows[b], texts[a], texts[b], same)
		}
	}
	if deepest < 10 {
		t.Errorf("no two of these rows share more than %d blocks: the test shows little", deepest)
	}
}

// checkShared checks that the texts of two rows agree in the blocks whose ids the
// rows share, the last of which may be partial, and in at most seven words more.
func checkShared(t *testing.T, a, b traceRow, textA, textB []byte, same int) {
	t.Helper()
	tokens := min(same*blockTokens, a.InputTokens, b.InputTokens)
	prefix := passage{keys: a.HashIDs[:same], tokens: tokens}.appendText(nil, 1)
	if !bytes.HasPrefix(textA, prefix) || !bytes.HasPrefix(textB, prefix) {
		t.Fatalf("%v and %v share %d blocks, but not their text", a.HashIDs, b.HashIDs, same)
	}
	alike := len(bytes.Fields(textA[:commonPrefix(textA, textB)]))
	if alike > tokens+8 { // the eighth may agree in its first letters
		t.Fatalf("%v and %v share %d tokens of blocks, but %d words of text", a.HashIDs, b.HashIDs, tokens, alike)
	}
}

func commonPrefix[T comparable](a, b []T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
