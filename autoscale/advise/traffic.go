package advise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/mix"
)

// Request is one row of a log. Times are since its first row, lengths in tokens.
type Request struct {
	At       time.Duration
	Prompt   int
	Uncached int // of the prompt: what an unbounded prefix cache does not hold
	Output   int
}

// Traffic is what a log holds, in order of time.
type Traffic struct {
	Requests []Request
	Prefixes bool // rows named their blocks, so that hits could be counted
}

// blockTokens is the size of a block that hash_ids name (Mooncake's traces).
const blockTokens = 512

// maxLine bounds one row: a million block ids of seven digits.
const maxLine = 8 << 20

// Read reads JSON lines with timestamp (milliseconds), input_length, output_length,
// and hash_ids where prefixes are known: Mooncake's format, which an access log is
// easily turned into.
func Read(r io.Reader) (*Traffic, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	t := &Traffic{}
	seen := make(map[uint64]bool)
	var first int64
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var row struct {
			Timestamp int64    `json:"timestamp"`
			Prompt    int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(t.Requests) == 0 {
			first = row.Timestamp
		}
		if row.Prompt < 1 || row.Output < 1 || row.Timestamp < first {
			return nil, fmt.Errorf("line %d: want a prompt and an output of at least a token, and rows in order of time", n)
		}
		at := time.Duration(row.Timestamp-first) * time.Millisecond
		t.Requests = append(t.Requests, Request{At: at, Prompt: row.Prompt, Uncached: uncached(row.Prompt, row.Blocks, seen), Output: row.Output})
		t.Prefixes = t.Prefixes || len(row.Blocks) > 0
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.Requests) == 0 {
		return nil, errors.New("no requests in it")
	}
	return t, nil
}

// uncached is what of a prompt was not seen before; its blocks are from now on.
func uncached(prompt int, blocks []uint64, seen map[uint64]bool) int {
	whole := blocks[:min(len(blocks), prompt/blockTokens)]
	hits := 0
	for hits < len(whole) && seen[whole[hits]] {
		hits++
	}
	for _, b := range whole {
		seen[b] = true
	}
	return max(1, prompt-hits*blockTokens)
}

// Busiest is the window with most tokens to compute and to give, all of a shorter log.
func (t *Traffic) Busiest(window time.Duration) (from time.Duration, requests []Request) {
	all := t.Requests
	if all[len(all)-1].At <= window {
		return 0, all
	}
	tokens, most, first, best := 0, -1, 0, [2]int{}
	for i, r := range all {
		tokens += r.Uncached + r.Output
		for all[first].At <= r.At-window {
			tokens -= all[first].Uncached + all[first].Output
			first++
		}
		if tokens > most {
			most, best = tokens, [2]int{first, i + 1}
		}
	}
	return all[best[0]].At, all[best[0]:best[1]]
}

// classes groups the requests of a window by the powers of four of what is to be
// computed and given, at most sixteen or so of them.
func classes(requests []Request, window time.Duration, ttft, itl time.Duration) []mix.Class {
	type key struct{ in, out int }
	groups := make(map[key]*mix.Class)
	for _, r := range requests {
		k := key{bits.Len(uint(r.Uncached)) / 2, bits.Len(uint(r.Output)) / 2}
		c := groups[k]
		if c == nil {
			c = &mix.Class{Name: fmt.Sprintf("%d/%d", 1<<(2*k.in), 1<<(2*k.out)), TTFT: ttft, ITL: itl}
			groups[k] = c
		}
		c.Rate++ // counted first, turned into means below
		c.Prompt += float64(r.Prompt)
		c.Uncached += float64(r.Uncached)
		c.Output += float64(r.Output)
	}
	var all []mix.Class
	for _, c := range groups {
		n := c.Rate
		c.Prompt, c.Uncached, c.Output, c.Rate = c.Prompt/n, c.Uncached/n, c.Output/n, n/window.Seconds()
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b mix.Class) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	return all
}
