package loadtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

// traceStep is the time between two arrivals' stamps in Mooncake's traces: about
// three seconds, with up to 28 requests on one stamp.
const traceStep = 3 * time.Second

// maxTraceLine bounds one line of a trace: a million block ids of seven digits.
const maxTraceLine = 8 << 20

// A traceRow is one line of a Mooncake trace (kvcache-ai/Mooncake,
// FAST25-release/README.md). The ids stand for blocks of 512 tokens, each
// chained to all blocks before it; the last block may be partial.
type traceRow struct {
	TimestampMS  int64    `json:"timestamp"`
	InputTokens  int      `json:"input_length"`
	OutputTokens int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// check refuses a row that cannot be turned into a request.
func (r traceRow) check(after int64) error {
	if r.TimestampMS < after {
		return fmt.Errorf("timestamp %d after %d: rows must be in order of time", r.TimestampMS, after)
	}
	if r.InputTokens < 1 || r.InputTokens > maxTokens || r.OutputTokens < 1 || r.OutputTokens > maxTokens {
		return fmt.Errorf("input_length %d, output_length %d: want 1 to %d", r.InputTokens, r.OutputTokens, maxTokens)
	}
	if want := (r.InputTokens + blockTokens - 1) / blockTokens; len(r.HashIDs) != want {
		return fmt.Errorf("%d hash_ids for %d tokens: want %d", len(r.HashIDs), r.InputTokens, want)
	}
	return nil
}

// readTraceFile reads at most limit rows (0: all) of the JSONL file at path.
func readTraceFile(path string, limit int) ([]traceRow, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	rows, err := readTrace(f, limit)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", path, err)
	}
	return rows, nil
}

func readTrace(r io.Reader, limit int) ([]traceRow, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	var rows []traceRow
	for n := 1; (limit == 0 || len(rows) < limit) && lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var row traceRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var after int64
		if len(rows) > 0 {
			after = rows[len(rows)-1].TimestampMS
		}
		if err := row.check(after); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no requests in it")
	}
	return rows, nil
}

// traceTimes returns when each row is sent, counted from the first row's stamp
// and multiplied by scale. Rows with one stamp are spread uniformly, in file order,
// over the time to the next stamp, at most 3 s: the trace rounds to such steps,
// and 28 requests at one instant would be a burst that never was.
func traceTimes(rows []traceRow, scale float64, rng *rand.Rand) []time.Duration {
	times := make([]time.Duration, len(rows))
	for i := 0; i < len(rows); {
		end := i
		for end < len(rows) && rows[end].TimestampMS == rows[i].TimestampMS {
			end++
		}
		step := traceStep
		if end < len(rows) {
			step = min(step, time.Duration(rows[end].TimestampMS-rows[i].TimestampMS)*time.Millisecond)
		}
		base := time.Duration(rows[i].TimestampMS-rows[0].TimestampMS) * time.Millisecond
		for k := i; k < end; k++ {
			times[k] = time.Duration(float64(base+time.Duration(rng.Float64()*float64(step))) * scale)
		}
		slices.Sort(times[i:end])
		i = end
	}
	return times
}

// traceWorkload asks what the rows say, in their order.
type traceWorkload struct {
	mu   sync.Mutex          // guards what follows
	rows []traceRow          // not yet asked
	seen map[uint64]struct{} // blocks of prompts that were answered
}

// next returns the next row. The schedule made of the same rows ends with them,
// so there always is one.
func (w *traceWorkload) next(time.Time) turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	row := w.rows[0]
	w.rows = w.rows[1:]
	t := turn{
		question:     passage{keys: row.HashIDs, tokens: row.InputTokens},
		outputTokens: row.OutputTokens,
		promptTokens: row.InputTokens,
	}
	for _, id := range row.HashIDs {
		if _, seen := w.seen[id]; !seen {
			break
		}
		t.repeated = min(t.repeated+blockTokens, row.InputTokens)
	}
	return t
}

// answered notes the blocks of the prompt. What a conversation in the trace asks next is
// a row of its own, with its own history.
func (w *traceWorkload) answered(t turn, _ []message, _ *outcome, _ time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range t.question.keys {
		w.seen[id] = struct{}{}
	}
}
