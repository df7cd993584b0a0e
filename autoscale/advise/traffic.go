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

// Row is a request of a log, with the blocks of its prompt where the log has them: each of 512 tokens,
// and chained to all blocks before it.
type Row struct {
	At     time.Duration // since the first row
	Prompt int           // tokens
	Output int           // tokens
	Blocks []uint64
}

// line is a line of a log: of Mooncake's traces, or of an access log with the names of
// OpenAI's usage.
type line struct {
	Stamp  int64     `json:"timestamp"` // milliseconds
	Time   time.Time `json:"time"`      // RFC 3339, in its place
	Input  int       `json:"input_length"`
	Prompt int       `json:"prompt_tokens"` // in its place
	Length int       `json:"output_length"`
	Answer int       `json:"completion_tokens"` // in its place
	Blocks []uint64  `json:"hash_ids"`
}

// at is the line's time since 1970.
func (l *line) at() time.Duration {
	if l.Time.IsZero() {
		return time.Duration(l.Stamp) * time.Millisecond
	}
	return time.Duration(l.Time.UnixNano())
}

// ReadRows reads JSON lines: Mooncake's format, or an access log whose lines have the time
// and the tokens of a request. Lines may be in any order, as requests end; rows are in order of time.
// A line without tokens is a request that got no answer, and is counted and left out.
func ReadRows(r io.Reader) (rows []Row, leftOut int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", n, err)
		}
		row := Row{At: l.at(), Prompt: cmp.Or(l.Input, l.Prompt), Output: cmp.Or(l.Length, l.Answer), Blocks: l.Blocks}
		switch {
		case row.Prompt < 0 || row.Output < 0:
			return nil, 0, fmt.Errorf("line %d: tokens are negative", n)
		case row.Prompt == 0 || row.Output == 0:
			leftOut++
		default:
			rows = append(rows, row)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, 0, err
	}
	if len(rows) == 0 {
		return nil, 0, errors.New("no requests with tokens in it")
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.At, b.At) })
	first := rows[0].At
	for i := range rows {
		rows[i].At -= first
	}
	return rows, leftOut, nil
}

// Read reads what ReadRows does, and what of each prompt an unbounded cache does not hold.
func Read(r io.Reader) (*Traffic, error) {
	rows, leftOut, err := ReadRows(r)
	if err != nil {
		return nil, err
	}
	t := &Traffic{LeftOut: leftOut}
	seen := make(map[uint64]bool)
	for _, r := range rows {
		t.Requests = append(t.Requests, Request{At: r.At, Prompt: r.Prompt, Uncached: uncached(r.Prompt, r.Blocks, seen), Output: r.Output})
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
