package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// Only servers that have met are priced as if they fetched: the others meet. A leader, which has no ids of another
// replica's prompt, books the fetch that the replica will make.
func TestSetFetches(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 2, prompt) // prefill holds a quarter or a sixteenth of it
	meetings := new(predict.Meetings)
	f.Binder.Meetings, f.Binder.Config.FetchKV = meetings, true
	now := time.Now()
	r := &f.arrives(prompt, now).bind
	r.certain = len(prompt)
	view := func() snapshot {
		v := f.Binder.snapshotFor(r, nil, now)
		for i := range v.candidates.Prefill {
			v.candidates.Prefill[i].FetchBlock, v.candidates.Prefill[i].Prefill[1] = 16, 1 // a second for 1,000 tokens
		}
		for i := range v.candidates.Decode {
			v.candidates.Decode[i].FetchBlock = 16
		}
		v.candidates.Decode[0].Cached.GPU = 6400
		f.Binder.setFetches(r, &v, now)
		return v
	}
	claim := func(v *snapshot) *binding {
		b := &binding{chosen: cost.Alternative{Prefill: v.candidates.Prefill[1].ID, Decode: v.candidates.Decode[1].ID}}
		f.Binder.setPulls(r, v, b)
		return b
	}

	v := view()
	if b := claim(&v); v.candidates.Prefill[1].Remote.Fetched || b.fetch.from != nil || b.fetch.meets != v.decode[0] {
		t.Errorf("before they have met: offered %+v, bound to %+v", v.candidates.Prefill[1].Remote, b.fetch)
	}
	meetings.Observe(meetingOf(v.decode[0], v.prefill[1]), true, now)
	v = view()
	if b := claim(&v); !v.candidates.Prefill[1].Remote.Fetched || b.fetch.from != v.decode[0] || len(b.fetch.ids) != 6384 || b.fetch.lacked < 4000 || b.fetch.takes <= 0 || b.fetch.saves <= 0 {
		t.Errorf("once they have met: offered %+v, bound to %+v", v.candidates.Prefill[1].Remote, b.fetch)
	}
	if v.candidates.Prefill[0].Remote.Fetched {
		t.Error("the one that has not met is offered as much")
	}
	r.remote, r.prefix.tokens.IDs = true, nil
	v = view()
	if b := claim(&v); b.fetch.from != v.decode[0] || b.fetch.takes <= 0 || b.fetch.ids != nil {
		t.Errorf("another replica's request: bound to %+v", b.fetch)
	}
}
