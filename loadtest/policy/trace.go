package policy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
)

// blockTokens is the size of a block in Mooncake's traces.
const blockTokens = 512

// traceStep is the time in seconds between two stamps of Mooncake's traces: they
// round to it, so requests of one stamp arrived somewhere within it.
const traceStep = 3.0

// maxTraceLine bounds one line of a trace: a million block ids of seven digits.
const maxTraceLine = 8 << 20

// Request is one row of a trace.
type Request struct {
	Stamp  float64 // seconds since the first row, as rounded by the trace
	Prompt int     // tokens
	Output int     // tokens
	Blocks []int32 // ids of the prompt's blocks, counted from 0; the last may be partial
}

// whole returns the blocks that a cache can hold: an engine hashes full ones only.
func (r *Request) whole() []int32 { return r.Blocks[:r.Prompt/blockTokens] }

// wholeUpTo is those of the blocks that end at a token or before it.
func (r *Request) wholeUpTo(token int) []int32 {
	blocks := r.whole()
	return blocks[:min(len(blocks), token/blockTokens)]
}

// Trace is a sequence of requests in order of their stamps. Runs share it and do
// not change it.
type Trace struct {
	Name     string
	Requests []Request
	Blocks   int  // distinct block ids
	Exact    bool // stamps are when requests arrive, and not rounded
}

// ReadTraceFile reads the Mooncake JSONL file at path, at most limit rows (0: all).
func ReadTraceFile(path string, limit int) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	t, err := ReadTrace(f, limit)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", path, err)
	}
	t.Name = path
	return t, nil
}

// Write writes it in Mooncake's format, stamps in whole milliseconds.
func (t *Trace) Write(w io.Writer) error {
	lines := json.NewEncoder(w)
	for i := range t.Requests {
		r := &t.Requests[i]
		if err := lines.Encode(traceRow[int32]{int64(math.Round(1000 * r.Stamp)), r.Prompt, r.Output, r.Blocks}); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}

// traceRow is a line of Mooncake's format, with block ids of type T.
type traceRow[T int32 | uint64] struct {
	Timestamp    int64 `json:"timestamp"` // milliseconds
	InputLength  int   `json:"input_length"`
	OutputLength int   `json:"output_length"`
	HashIDs      []T   `json:"hash_ids"`
}

// ReadTrace reads Mooncake's format (kvcache-ai/Mooncake,
// FAST25-release/README.md). Block ids are renumbered in order of appearance.
func ReadTrace(r io.Reader, limit int) (*Trace, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	t := &Trace{}
	ids := make(map[uint64]int32)
	var first int64
	for n := 1; (limit == 0 || len(t.Requests) < limit) && lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var row traceRow[uint64]
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(t.Requests) == 0 {
			first = row.Timestamp
		}
		req := Request{Stamp: float64(row.Timestamp-first) / 1000, Prompt: row.InputLength, Output: row.OutputLength}
		if err := checkRow(&req, len(row.HashIDs), t.Requests); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		for _, id := range row.HashIDs {
			dense, known := ids[id]
			if !known {
				dense = int32(len(ids))
				ids[id] = dense
			}
			req.Blocks = append(req.Blocks, dense)
		}
		t.Requests = append(t.Requests, req)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.Requests) == 0 {
		return nil, errors.New("no requests in it")
	}
	t.Blocks = len(ids)
	return t, nil
}

func checkRow(r *Request, ids int, before []Request) error {
	if len(before) > 0 && r.Stamp < before[len(before)-1].Stamp {
		return errors.New("rows must be in order of time")
	}
	if r.Prompt < 1 || r.Output < 1 {
		return fmt.Errorf("input_length %d, output_length %d: want at least 1", r.Prompt, r.Output)
	}
	if want := (r.Prompt + blockTokens - 1) / blockTokens; ids != want {
		return fmt.Errorf("%d hash_ids for %d tokens: want %d", ids, r.Prompt, want)
	}
	return nil
}

// arrivals returns when each request arrives, in seconds: requests of one stamp
// are spread uniformly over the trace's step unless stamps are exact, and all times divided
// by speedup.
func (t *Trace) arrivals(speedup float64, rng *rand.Rand) []float64 {
	at := make([]float64, len(t.Requests))
	if t.Exact {
		for i := range at {
			at[i] = t.Requests[i].Stamp / speedup
		}
		return at
	}
	for i := 0; i < len(at); {
		end := i
		for end < len(at) && t.Requests[end].Stamp == t.Requests[i].Stamp {
			end++
		}
		step := traceStep
		if end < len(at) {
			step = min(step, t.Requests[end].Stamp-t.Requests[i].Stamp)
		}
		for k := i; k < end; k++ {
			at[k] = (t.Requests[i].Stamp + rng.Float64()*step) / speedup
		}
		slices.Sort(at[i:end])
		i = end
	}
	return at
}

// lengthDeciles returns, for each request, which tenth of the trace its prompt
// length is in: 0 the shortest. Equal lengths fall into one tenth.
func (t *Trace) lengthDeciles() []int {
	lengths := make([]int, len(t.Requests))
	for i := range t.Requests {
		lengths[i] = t.Requests[i].Prompt
	}
	slices.Sort(lengths)
	var bounds [9]int
	for k := range bounds {
		bounds[k] = lengths[len(lengths)*(k+1)/10]
	}
	deciles := make([]int, len(t.Requests))
	for i := range t.Requests {
		for deciles[i] < 9 && t.Requests[i].Prompt >= bounds[deciles[i]] {
			deciles[i]++
		}
	}
	return deciles
}

// withBursts returns the trace with siblings: every seconds, the next request
// comes size times at once, each with the same prompt up to a last block of its own.
func (t *Trace) withBursts(every float64, size int) *Trace {
	burst := &Trace{Name: t.Name, Blocks: t.Blocks, Exact: t.Exact, Requests: make([]Request, 0, len(t.Requests))}
	next := every
	for _, r := range t.Requests {
		burst.Requests = append(burst.Requests, r)
		if r.Stamp < next {
			continue
		}
		next += every
		for range size - 1 {
			sibling := r
			sibling.Blocks = slices.Clone(r.Blocks)
			sibling.Blocks[len(sibling.Blocks)-1] = int32(burst.Blocks)
			burst.Blocks++
			burst.Requests = append(burst.Requests, sibling)
		}
	}
	return burst
}
