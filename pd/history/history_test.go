package history

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// noon is the beginning of a step.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// What happened stands in the step in which it happened, and in those of the last minute while it
// is younger than that.
func TestHistory_ViewIsByStep(t *testing.T) {
	h := New()
	s := h.Model("m", noon)
	s.RecordFirst(Parts{Wait: 10 * time.Millisecond, Prefill: 30 * time.Millisecond, Transfer: 20 * time.Millisecond}, noon)
	s.RecordFirst(Parts{Wait: 30 * time.Millisecond, Aggregated: 50 * time.Millisecond}, noon.Add(Step-1))
	s.RecordFirst(Parts{Together: time.Second}, noon.Add(Step))
	s.RecordFailure(noon.Add(Step))
	now := noon.Add(2 * Step)
	v := h.View("m", now)
	if len(v.Points) != Steps || !v.Points[Steps-1].Start.Equal(now) || !v.Points[Steps-3].Start.Equal(noon) {
		t.Fatalf("%d points, the last from %v", len(v.Points), v.Points[len(v.Points)-1].Start)
	}
	first, second, last := v.Points[Steps-3], v.Points[Steps-2], v.Points[Steps-1]
	if want := (Parts{Wait: 20 * time.Millisecond, Prefill: 15 * time.Millisecond, Transfer: 10 * time.Millisecond, Aggregated: 25 * time.Millisecond}); first.First != 2 || first.Parts != want {
		t.Errorf("%d first tokens, on the mean %+v", first.First, first.Parts)
	}
	if second.First != 1 || second.Parts.Total() != time.Second || second.Failed != 1 || first.Failed != 0 || last.First != 0 || last.TTFT99 != 0 {
		t.Errorf("%+v\n%+v", second, last)
	}
	if v.Lately.First != 3 || v.Lately.Failed != 1 || !v.Lately.Start.Equal(now.Add(-5*Step)) {
		t.Errorf("lately %+v", v.Lately)
	}
	if later := h.View("m", noon.Add(7*Step)); later.Lately.First != 0 || later.Points[Steps-8].First != 2 {
		t.Errorf("a minute later %+v", later.Lately)
	}
}

// What is older than the history is forgotten, whether or not something has taken its place.
func TestHistory_Forgets(t *testing.T) {
	h := New()
	h.Model("m", noon).RecordAnswer(Prompt{Tokens: 5}, 7, noon)
	count := func(now time.Time) (answers int) {
		for _, p := range h.View("", now).Points {
			answers += p.Answers
		}
		return answers
	}
	if n := count(noon.Add((Steps - 1) * Step)); n != 1 {
		t.Errorf("in its last step there are %d", n)
	}
	if n := count(noon.Add(Steps * Step)); n != 0 {
		t.Errorf("after it there are %d", n)
	}
	h.Model("m", noon.Add(Steps*Step)).RecordAnswer(Prompt{Tokens: 5}, 7, noon.Add(Steps*Step))
	if n := count(noon.Add(Steps * Step)); n != 1 {
		t.Errorf("in the place of an old step there are %d", n)
	}
}

// All models together are the sum of each; those for which there is no place are one.
func TestHistory_IsBoundedInModels(t *testing.T) {
	h := New()
	for i := range 100 {
		h.Model(fmt.Sprintf("m%02d", i), noon).RecordAnswer(Prompt{Tokens: 10, Predicted: 4, Cached: 3, Reported: i%2 == 0}, 2, noon)
	}
	names := h.Models()
	if len(names) != maxModels+1 || names[0] != "m00" || names[maxModels] != Others {
		t.Fatalf("%d models: %s", len(names), strings.Join(names, " "))
	}
	if others := h.View(Others, noon).Lately; others.Answers != 100-maxModels {
		t.Errorf("%d answers of others", others.Answers)
	}
	all := h.View("", noon).Lately
	want := Point{Start: all.Start, Answers: 100, Prompt: 1000, Output: 200, Predicted: 400, ReportedOf: 500, Cached: 150, PredictedOfThese: 200}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("%+v\nwant %+v", all, want)
	}
}

// A model that comes when there are too many takes the place of one that has been idle for a minute, such as an adapter
// that is gone: what that one had, and what its streams record still, counts with the others.
func TestHistory_AModelTakesThePlaceOfAnIdleOne(t *testing.T) {
	h := New()
	streams := make([]*Series, maxModels)
	for i := range streams {
		name := fmt.Sprintf("adapter-%02d", i)
		streams[i] = h.Model(name, noon)
		h.Model(name, noon).RecordAnswer(Prompt{Tokens: 10}, 2, noon.Add(time.Duration(i)*time.Millisecond))
	}
	answer := func(model string, at time.Time) { h.Model(model, at).RecordAnswer(Prompt{Tokens: 10}, 2, at) }
	soon, later := noon.Add(30*time.Second), noon.Add(65*time.Second)
	answer("base", soon) // all others were asked for just now
	if n := h.View(Others, soon).Lately.Answers; n != 1 || slices.Contains(h.Models(), "base") {
		t.Fatalf("%d answers of others, models %v", n, h.Models())
	}
	streams[1].RecordGaps([]time.Duration{time.Millisecond}, soon) // it streams on
	answer("base", later)
	answer("base", later)
	answer("next", later)
	for model, want := range map[string]bool{"base": true, "next": true, "adapter-00": false, "adapter-01": true, "adapter-02": false, "adapter-03": true, Others: true} {
		if slices.Contains(h.Models(), model) != want {
			t.Errorf("%s: not %v, of %v", model, want, h.Models())
		}
	}
	streams[0].RecordFailure(later)
	answers := func(model string) (n, failed int) {
		for _, p := range h.View(model, later).Points {
			n, failed = n+p.Answers, failed+p.Failed
		}
		return n, failed
	}
	for model, want := range map[string][2]int{"base": {2, 0}, "next": {1, 0}, "adapter-01": {1, 0}, Others: {3, 1}, "": {maxModels + 4, 1}} {
		if n, failed := answers(model); n != want[0] || failed != want[1] {
			t.Errorf("%q: %d answers, %d failed, want %v", model, n, failed, want)
		}
	}
}

// A quantile is right to a tenth, over the whole range of times that matter.
func TestHistory_Quantiles(t *testing.T) {
	h := New()
	s := h.Model("m", noon)
	for _, scale := range []time.Duration{time.Millisecond, 40 * time.Millisecond, time.Second, 2 * time.Minute} {
		now := noon.Add(scale * 1000)
		var gaps []time.Duration
		for i := range 1000 {
			gaps = append(gaps, scale+scale*time.Duration(i)/1000) // evenly from once to twice
		}
		s.RecordGaps(gaps, now)
		p := h.View("m", now).Points[Steps-1]
		for _, x := range []struct{ got, want time.Duration }{{p.ITL50, scale * 3 / 2}, {p.ITL99, scale * 199 / 100}, {p.ITLMean, scale * 3 / 2}} {
			if off := math.Abs(float64(x.got)/float64(x.want) - 1); off > 0.1 || p.Gaps != 1000 {
				t.Errorf("of %d gaps from %v on: %v, want %v", p.Gaps, scale, x.got, x.want)
			}
		}
	}
	if short := h.View("none", noon).Lately; short.ITL99 != 0 {
		t.Errorf("of none: %v", short.ITL99)
	}
	h.Model("ends", noon).RecordGaps([]time.Duration{0, time.Nanosecond, 1e6 * time.Hour}, noon)
	if ends := h.View("ends", noon).Lately; ends.ITL50 > smallestBin || ends.ITL99 < 15*time.Minute {
		t.Errorf("beyond the bins: %v, %v", ends.ITL50, ends.ITL99)
	}
}

// A gateway without a history records nothing, and shows an empty one.
func TestHistory_NilKeepsNothing(t *testing.T) {
	var h *History
	s := h.Model("m", noon)
	s.RecordFirst(Parts{Wait: 1}, noon)
	s.RecordGaps([]time.Duration{1}, noon)
	s.RecordAnswer(Prompt{Tokens: 1}, 1, noon)
	s.RecordFailure(noon)
	if v := h.View("", noon); len(v.Points) != Steps || v.Lately.Answers != 0 || len(h.Models()) != 0 {
		t.Errorf("%+v", v.Lately)
	}
}

// Recording allocates nothing: it happens with every token.
func TestHistory_RecordsWithoutAllocating(t *testing.T) {
	h := New()
	s, gaps := h.Model("m", noon), make([]time.Duration, 16)
	if n := testing.AllocsPerRun(100, func() { s.RecordGaps(gaps, noon); s.RecordFirst(Parts{}, noon) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What two gateways counted adds up to what one would have counted that saw all of it: the quantiles
// too, which are no mean of theirs. It goes by JSON, as between gateways.
func TestCounts_OfTwoGatewaysAreThoseOfOne(t *testing.T) {
	here, there, both := New(), New(), New()
	record := func(h *History, ttft time.Duration, at time.Time) {
		for _, h := range []*History{h, both} {
			h.Model("m", at).RecordFirst(Parts{Prefill: ttft}, at)
			h.Model("m", at).RecordGaps([]time.Duration{ttft / 10, 1e6 * time.Hour}, at)
			h.Model("m", at).RecordAnswer(Prompt{Tokens: 10, Predicted: 6, Cached: 5, Reported: true}, 7, at)
			h.Model("m", at).RecordFailure(at)
		}
	}
	for i := range 99 {
		record(here, time.Duration(10+i)*time.Millisecond, noon.Add(time.Duration(i)*time.Second))
	}
	record(there, 3*time.Second, noon.Add(90*time.Second))
	now := noon.Add(99 * time.Second)
	sum := here.Counts("m", now)
	sum.Add(sent(t, there.Counts("m", now)), 0)
	if got, want := sum.View(), both.View("m", now); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got.Lately, want.Lately)
	}
	if got := sum.Lately().View().Lately; !reflect.DeepEqual(got, both.View("m", now).Lately) {
		t.Errorf("of the last minute alone: %+v", got)
	}
	if got := sum.Lately().View().Points[Steps-8].First; got != 0 {
		t.Errorf("the last minute's counts have %d of before it", got)
	}
}

// sent are counts as another gateway reads them.
func sent(t *testing.T, c *Counts) *Counts {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Counts)
	if err := json.Unmarshal(text, got); err != nil || *got != *c {
		t.Fatalf("%v: %s", err, text)
	}
	return got
}

// Another gateway's clock may be wrong: what happened at one time stands in one step.
func TestCounts_AreAlignedByTheClockOfTheirReader(t *testing.T) {
	for _, wrong := range []time.Duration{0, 3 * time.Second, -3 * time.Second, 10 * time.Minute, -24 * time.Hour} {
		here, there := New(), New()
		here.Model("m", noon).RecordFailure(noon)
		there.Model("m", noon.Add(-wrong)).RecordFailure(noon.Add(-wrong))
		now := noon.Add(25 * time.Second)
		sum := here.Counts("m", now)
		sum.Add(there.Counts("m", now.Add(-wrong)), wrong)
		failed := 0
		for _, p := range sum.View().Points[Steps-4:] {
			failed += p.Failed
		}
		if at := sum.View().Points[Steps-3].Failed; failed != 2 || wrong%Step == 0 && at != 2 {
			t.Errorf("a clock %v behind: %d of %d in their step", wrong, at, failed)
		}
	}
}

// Counts that no gateway writes are refused, or hold nothing.
func TestCounts_ReadNothingElse(t *testing.T) {
	for _, text := range []string{
		`[]`, `{"steps":[{"ttft":[64,1]}]}`, `{"steps":[{"ttft":[65]}]}`, `{"steps":[{"ttft":[0,-1]}]}`, `{"steps":[{"gaps":{}}]}`,
		`{"steps":[{"gaps":[1` + strings.Repeat(",1", 64) + `]}]}`,
	} {
		if err := json.Unmarshal([]byte(text), new(Counts)); err == nil {
			t.Errorf("%s is read", text)
		}
	}
	var c Counts
	if err := json.Unmarshal([]byte(`{"last":100,"steps":[{"number":101,"first":1},{"number":10,"first":1},{"number":11,"first":1,"ttft":[]}]}`), &c); err != nil || c.steps[0].First != 1 {
		t.Errorf("%v %+v", err, c.steps[0])
	}
	if got := c.View(); got.Lately.First != 0 || got.Points[0].First != 1 {
		t.Errorf("%+v", got.Points[0])
	}
}
