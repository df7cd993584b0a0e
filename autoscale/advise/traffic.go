package advise

import (
	"bufio"
	"cmp"
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
	LeftOut  int  // rows without tokens
}

// blockTokens is the size of a block that hash_ids name (Mooncake's traces).
const blockTokens = 512

// maxLine bounds one row: a million block ids of seven digits.
const maxLine = 8 << 20

// row is a line of a log: of Mooncake's traces, or of an access log with the names of
// OpenAI's usage.
type row struct {
	Stamp  int64     `json:"timestamp"` // milliseconds
	Time   time.Time `json:"time"`      // RFC 3339, in its place
	Input  int       `json:"input_length"`
	Prompt int       `json:"prompt_tokens"` // in its place
	Length int       `json:"output_length"`
	Answer int       `json:"completion_tokens"` // in its place
	Blocks []uint64  `json:"hash_ids"`
}

// at is the row's time since 1970.
func (r *row) at() time.Duration {
	if r.Time.IsZero() {
		return time.Duration(r.Stamp) * time.Millisecond
	}
	return time.Duration(r.Time.UnixNano())
}

// Read reads JSON lines: Mooncake's format, or an access log whose lines have the time
// and the tokens of a request. Lines may be in any order, as requests end. A line without
// tokens is a request that got no answer, and is counted and left out.
func Read(r io.Reader) (*Traffic, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	t := &Traffic{}
	var rows []row
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line row
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		line.Input, line.Length = cmp.Or(line.Input, line.Prompt), cmp.Or(line.Length, line.Answer)
		switch {
		case line.Input < 0 || line.Length < 0:
			return nil, fmt.Errorf("line %d: tokens are negative", n)
		case line.Input == 0 || line.Length == 0:
			t.LeftOut++
		default:
			rows = append(rows, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("no requests with tokens in it")
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.at(), b.at()) })
	seen := make(map[uint64]bool)
	for i := range rows {
		r := &rows[i]
		t.Requests = append(t.Requests, Request{At: r.at() - rows[0].at(), Prompt: r.Input, Uncached: uncached(r.Input, r.Blocks, seen), Output: r.Length})
		t.Prefixes = t.Prefixes || len(r.Blocks) > 0
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
