package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/cost"

	"github.com/tandem-gateway/tandem/pd/api"
)

// hits is what the server that computes a request's prompt was known to hold of it when it
// was chosen.
type hits struct {
	server string
	held   cached.Tokens
}

// noteHits keeps what the server that was chosen for the prompt holds of it. A hand-off that
// goes to another decode server was computed before, and keeps what was noted then.
func (ch *Chooser) noteHits(b *binding, v *snapshot) {
	list, id := v.field.Prefill, b.chosen.Prefill
	switch {
	case v.handoff != nil:
		return
	case id == "":
		list, id = v.field.Decode, b.chosen.Decode
	}
	b.hits = hits{server: id, held: list[cost.IndexOf(list, id)].Cached}
	if held := b.hits.held.Disk; held > 0 {
		ch.heat.saved(id, held, time.Now())
	}
}

// countHits counts a prompt that was computed, and what was known to be held of it. Both are
// counted here, when an engine has told how long it was: often only its beginning is known
// before, which of all parts is the one that caches hold.
func (m *Metrics) countHits(st *requestState, prompt api.Count) {
	if st.bind.prefix == nil || !prompt.Known {
		return
	}
	m.lookedUpToks.WithLabelValues(st.req.Model).Add(float64(prompt.Tokens))
	counted := 0
	for _, tier := range []kvstate.Tier{kvstate.GPU, kvstate.CPU, kvstate.Disk} {
		if held := min(tier.Of(st.hits.held), prompt.Tokens); held > counted {
			m.heldToks.WithLabelValues(st.hits.server, tier.String()).Add(float64(held - counted))
			counted = held
		}
	}
}
