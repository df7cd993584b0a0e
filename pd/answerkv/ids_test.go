package answerkv

import (
	"slices"
	"strings"
	"testing"
)

// What an engine keeps of an answer is used where all of its tokens are known, and not otherwise.
func TestReport_OnlyWhereAllTokensAreKnown(t *testing.T) {
	known := func(n int) *IDs { return &IDs{ids: make([]uint32, n), prompt: 70} }
	spoiled := known(74)
	spoiled.Spoil()
	for name, c := range map[string]struct {
		ids            *IDs
		prompt, output int
		block          int
		want           int // tokens; 0: it is not used
	}{
		"all are":                          {known(74), 70, 4, 16, 73},
		"with the token that ended it":     {known(73), 70, 3, 16, 72},
		"one was not reported":             {known(73), 70, 4, 16, 0},
		"none was":                         {nil, 70, 4, 16, 0},
		"none was, of nothing":             {new(IDs), 0, 0, 16, 0},
		"some are not known":               {spoiled, 70, 4, 16, 0},
		"the size of a block is not known": {known(74), 70, 4, 0, 0},
		"the size of a block is another":   {known(74), 70, 4, 32, 0},
	} {
		r := Report{IDs: c.ids, Prompt: c.prompt, Output: c.output, Blocks: 5, Tokens: 73, Block: c.block, Handoff: []byte("h")}
		a := r.Answer()
		if (a != nil) != (c.want > 0) || a != nil && (len(a.IDs) != c.want || a.Prompt != 70 || a.Block != c.block || string(a.Handoff) != "h") {
			t.Errorf("%s: %+v, want %d tokens", name, a, c.want)
		}
	}
}

// Ids come in events, of the prompt first; what is no id, or comes without a prompt, is not trusted.
func TestIDs_Record(t *testing.T) {
	type event struct{ prompt, answer string }
	for name, c := range map[string]struct {
		events []event
		want   []uint32
		bad    bool
	}{
		"a stream":         {[]event{{"1, 2,3", ""}, {"", "4"}, {"", ""}, {"", "5,\n6"}}, []uint32{1, 2, 3, 4, 5, 6}, false},
		"all at once":      {[]event{{"1,2", "3"}}, []uint32{1, 2, 3}, false},
		"the prompt again": {[]event{{"1,2", "3"}, {"1,2", "4"}}, []uint32{1, 2, 3, 4}, false},
		"no prompt":        {[]event{{"", "4"}}, []uint32{4}, true},
		"a late prompt":    {[]event{{"", "4"}, {"1", ""}}, []uint32{4, 1}, true},
		"what is no id":    {[]event{{"1,-2", ""}}, []uint32{1, 0}, true},
		"one far too big":  {[]event{{"4294967296", ""}}, []uint32{1<<32 - 1}, true},
	} {
		var l IDs
		for _, e := range c.events {
			l.Record([]byte(e.prompt), []byte(e.answer))
		}
		if !slices.Equal(l.ids, c.want) || l.unknown != c.bad {
			t.Errorf("%s: %v, not all known: %v", name, l.ids, l.unknown)
		}
	}
}

// More ids than are remembered of all answers are not kept of one.
func TestIDs_AreBounded(t *testing.T) {
	var l IDs
	l.Record([]byte("1"), nil)
	many := []byte(strings.Repeat("7,", maxTokens/4) + "7")
	for range 5 {
		if l.Record(nil, many); len(l.ids) > maxTokens {
			t.Fatalf("%d are kept", len(l.ids))
		}
	}
	if !l.unknown || len(l.ids) > 0 {
		t.Errorf("known are all: %v, of what is of no use %d are kept", !l.unknown, len(l.ids))
	}
}
