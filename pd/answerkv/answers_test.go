package answerkv

import (
	"slices"
	"testing"
	"time"
)

var (
	start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	key   = Key{Class: 7, Model: "m"}
)

func ids(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

// kept is an answer of 60 tokens to a prompt of 200, the last of which was not computed.
func kept(server string) *Answer {
	return &Answer{Key: key, Server: server, IDs: append(ids(0, 200), ids(1000, 59)...), Prompt: 200, Block: 16, Until: start.Add(time.Minute)}
}

func TestFind_ComparesAllIDs(t *testing.T) {
	whole := append(append(ids(0, 200), ids(1000, 60)...), ids(5000, 30)...)
	changed := func(at int) []uint32 {
		p := slices.Clone(whole)
		p[at]++
		return p
	}
	for name, c := range map[string]struct {
		prompt []uint32
		key    Key
		want   int
	}{
		"the next turn":                         {whole, key, 256},
		"it ends in the answer":                 {whole[:230], key, 224},
		"the answer's last block differs":       {changed(250), key, 240},
		"a token of the answer differs":         {changed(215), key, 208},
		"none of the answer's tokens is there":  {changed(200), key, 0},
		"the answer's first block is not whole": {changed(207), key, 0},
		"a token of the prompt differs":         {changed(3), key, 0},
		"the prompt again":                      {whole[:200], key, 0},
		"as long as the blocks":                 {whole[:256], key, 240}, // the last token is computed
		"too short":                             {whole[:60], key, 0},
		"of another model":                      {whole, Key{Class: 7, Model: "other"}, 0},
		"of another adapter":                    {whole, Key{Class: 7, Model: "m", Adapter: "a"}, 0},
		"of another tenant":                     {whole, Key{Class: 7, Model: "m", Salt: "s"}, 0},
		"of servers with other KV":              {whole, Key{Class: 8, Model: "m"}, 0},
	} {
		var all Answers
		all.Add(kept("d"), start)
		if a, n := all.Find(c.key, c.prompt, start); n != c.want || (a != nil) != (n > 0) {
			t.Errorf("%s: %d tokens of %v, want %d", name, n, a, c.want)
		}
	}
}

func TestTake_OnceAndInTime(t *testing.T) {
	var all Answers
	a := kept("d")
	all.Add(a, start)
	if !all.IsThere(a, start) || !all.Take(a, start) || all.Take(a, start) || all.IsThere(a, start) {
		t.Error("taken twice")
	}
	prompt := append(kept("d").IDs, 1, 2, 3)
	if found, _ := all.Find(key, prompt, start); found != nil {
		t.Error("found though it was taken")
	}
	late := kept("d")
	all.Add(late, start)
	after := start.Add(time.Minute + 1)
	if all.Expects(5) || !all.Expects(0) {
		t.Error("expects other texts than that of the answer")
	}
	if found, _ := all.Find(key, prompt, after); found != nil || all.IsThere(late, after) || all.Take(late, after) {
		t.Error("used after its time")
	}
}

// Of two answers to one prompt each is found by its own tokens, and of equal ones the newest.
func TestFind_Siblings(t *testing.T) {
	var all Answers
	first, second, again := kept("first"), kept("second"), kept("again")
	second.IDs[230] = 9
	for _, a := range []*Answer{first, second, again} {
		all.Add(a, start)
	}
	for want, of := range map[string]*Answer{"again": kept(""), "second": second} {
		prompt := append(slices.Clone(of.IDs), 1, 2, 3)
		if a, n := all.Find(key, prompt, start); a == nil || a.Server != want || n != 256 {
			t.Errorf("%v with %d, want %s", a, n, want)
		}
	}
}

// What is remembered is bounded: the oldest make room, and what is over is let go of.
func TestAdd_IsBounded(t *testing.T) {
	var all Answers
	for i := range 40 {
		a := kept("d")
		a.IDs = append(ids(i<<20, 200), make([]uint32, maxTokens/8)...)
		all.Add(a, start)
	}
	if all.tokens > maxTokens || len(all.byBeginning) != 7 || len(all.oldest) != 7 {
		t.Errorf("%d tokens of %d answers, %d of them by their beginnings", all.tokens, len(all.oldest), len(all.byBeginning))
	}
	all.Add(kept("d"), start.Add(2*time.Minute))
	if len(all.oldest) != 1 || all.tokens != 259 {
		t.Errorf("%d tokens of %d answers after their time", all.tokens, len(all.oldest))
	}
	for _, bad := range []*Answer{{IDs: ids(0, 200), Prompt: 200}, {IDs: ids(0, 200), Prompt: 20, Block: 16}, {IDs: ids(0, 20), Prompt: 200, Block: 16}} {
		all.Add(bad, start)
	}
	if len(all.oldest) != 1 {
		t.Error("remembers what it cannot compare")
	}
}
