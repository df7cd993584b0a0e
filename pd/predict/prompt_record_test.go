package predict

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// reports lets one replica report to another, as pd/modelsync does.
type reports struct {
	from, to *Prompts
	sync     PromptSync
	again    bool
}

func (r *reports) now() {
	records := r.from.Records(testTime)
	if r.again {
		r.sync.MarkNew(records)
	}
	r.again = true
	r.sync.TakeIn(r.to, records, testTime)
}

// tokensIn is a prompt of an agent whose fixed part of 20,000 rough tokens has 35,000, and of
// which each rough token more makes 1.5.
func tokensIn(rough int) (Prompt, int) {
	return Prompt{Model: "m", API: "messages", Context: 7, Rough: rough}, 35_000 + (rough-20_000)*3/2
}

// A replica expects of a context that only another one has seen what that one expects, those of
// a later prompt too; and one that starts expects it.
func TestPromptSync_OneKnowsWhatAnotherHasCounted(t *testing.T) {
	a, b, fresh := NewPrompts(), NewPrompts(), NewPrompts()
	r := reports{from: a, to: b}
	r.now() // there is nothing yet
	for _, rough := range []int{20_000, 22_000, 25_000} {
		q, tokens := tokensIn(rough)
		a.Observe(q, tokens, testTime)
	}
	r.now()
	new(PromptSync).TakeIn(fresh, a.Records(testTime), testTime)
	for _, rough := range []int{20_500, 30_000} {
		q, tokens := tokensIn(rough)
		for who, p := range map[string]*Prompts{"another": b, "one that starts": fresh} {
			if got := p.Expect(q); off(got, tokens) > 0.001 {
				t.Errorf("%s: %d tokens expected of %d", who, got, tokens)
			}
		}
	}
	if told := b.Records(testTime); len(told) != 0 {
		t.Errorf("what it was told it reports as its own: %+v", told)
	}
}

// A prompt that was reported is learned once, however often it stands in a record; of a
// replica that started anew all that it has counted since is news.
func TestPromptSync_EachPromptIsNewsOnce(t *testing.T) {
	a, b := NewPrompts(), NewPrompts()
	r := reports{from: a, to: b}
	r.now()
	key := promptKey{"m", "messages", 7}
	wants := func(when string, learned int) {
		t.Helper()
		r.now()
		r.now()
		if got := b.contexts[key].count; got != learned {
			t.Errorf("%s: %d prompts are learned, want %d", when, got, learned)
		}
	}
	for i := range 3 {
		q, tokens := tokensIn(20_000 + 1000*i)
		a.Observe(q, tokens, testTime)
	}
	wants("three at once", 3)
	q, tokens := tokensIn(24_000)
	a.Observe(q, tokens, testTime)
	wants("one more", 4)
	r.from = NewPrompts() // the replica starts anew
	r.from.Observe(q, tokens, testTime)
	wants("started anew", 5)
	for range reportedPoints + 3 {
		r.from.Observe(q, tokens, testTime)
	}
	wants("more at once than are reported", 5+reportedPoints)
}

// Where a replica reports of a context for the first time that is known here, what is known here
// stands: nobody knows which of its prompts were counted before.
func TestPromptSync_WhatIsKnownStands(t *testing.T) {
	a, b := NewPrompts(), NewPrompts()
	q, tokens := tokensIn(20_000)
	b.Observe(q, tokens, testTime)
	a.Observe(q, tokens/2, testTime)
	new(PromptSync).TakeIn(b, a.Records(testTime), testTime)
	if got := b.Expect(q); got != tokens {
		t.Errorf("%d tokens expected, %d were counted here", got, tokens)
	}
}

// What others report is bounded, and what cannot be is not learned.
func TestPromptSync_ReportsAreBounded(t *testing.T) {
	p := NewPrompts()
	for i := range 2 * promptRecords {
		p.Observe(Prompt{Model: "m", API: "chat", Context: uint64(i), Rough: 100}, 120, testTime.Add(time.Duration(i)))
	}
	records := p.Records(testTime.Add(time.Minute))
	if len(records) != promptRecords || records[0].Context != 2*promptRecords-1 {
		t.Errorf("%d contexts are reported, the first %d", len(records), records[0].Context)
	}
	if old := p.Records(testTime.Add(stale + time.Second)); len(old) != 0 {
		t.Errorf("%d contexts are reported that were not seen for an hour", len(old))
	}
	good := [][2]int{{100, 120}}
	for what, r := range map[string]PromptRecord{
		"no rough tokens":  {Points: [][2]int{{0, 120}}},
		"no tokens":        {Points: [][2]int{{100, -1}}},
		"too many tokens":  {Points: [][2]int{{100, mostPromptTokens + 1}}},
		"too many prompts": {Points: make([][2]int, reportedPoints+1)},
		"a name too long":  {Model: strings.Repeat("m", 1024), Points: good},
	} {
		var sync PromptSync
		q := NewPrompts()
		sync.TakeIn(q, []PromptRecord{r}, testTime)
		if len(q.contexts)+len(sync.records) > 0 {
			t.Errorf("%s: learned", what)
		}
	}
	var sync PromptSync
	for i := range 8*promptRecords + 2 {
		sync.TakeIn(p, []PromptRecord{{Model: fmt.Sprint(i), Points: good}}, testTime)
	}
	if len(sync.records) != 1 {
		t.Errorf("%d records of a replica are kept", len(sync.records))
	}
	sync.TakeIn(nil, []PromptRecord{{Model: "m", Points: good}}, testTime)
	if (*Prompts)(nil).Records(testTime) != nil {
		t.Error("nothing learns, and something is reported")
	}
}
