package cost

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// Decode servers hold the prompts that they decoded behind, and often one that no prefill server holds any more, or only
// a busy one. A prefill server may fetch the KV of a prompt's beginning from there, before it computes the rest.

const (
	// leastFetched is how many tokens a server must lack of what another one holds for fetching them: it is two legs.
	leastFetched = 1024
	// mostHolders is how many decode servers are looked at: those that hold most of the prompt.
	mostHolders = 8
)

// holder is a decode server that holds so many leading tokens of a prompt.
type holder struct{ number, tokens int }

// holders are the decode servers that hold most of a prompt of which so many leading tokens are known for certain, and
// which keep KV for others.
func (f *Candidates) holders(certain int, found []holder) []holder {
	for i := range f.Decode {
		c := &f.Decode[i]
		tokens := min(c.Cached.Confirmed(), certain)
		if tokens < leastFetched || c.FetchBlock == 0 || c.Excluded {
			continue
		}
		at := len(found)
		for at > 0 && found[at-1].tokens < tokens {
			at--
		}
		if at == mostHolders {
			continue
		}
		if len(found) < mostHolders {
			found = append(found, holder{})
		}
		copy(found[at+1:], found[at:])
		found[at] = holder{number: i, tokens: tokens / c.FetchBlock * c.FetchBlock}
	}
	return found
}

// FetchLink says what a transfer between two servers is believed to cost, in seconds and seconds per byte; false where
// nothing is to be fetched over it.
type FetchLink func(from, to *Candidate) (latency, perByte float64, ok bool)

// OfferFetches writes for each prefill server from which decode server it would fetch the beginning of a prompt, where
// that is faster than what else it could do about it. So many leading tokens of the prompt are known for certain.
func (m *Model) OfferFetches(f *Candidates, prompt, certain int, link FetchLink) {
	var memory [mostHolders]holder
	for _, h := range f.holders(min(certain, prompt-1), memory[:0]) {
		from := &f.Decode[h.number]
		for i := range f.Prefill {
			to := &f.Prefill[i]
			if h.tokens-to.Cached.GPU < leastFetched || to.FetchBlock != from.FetchBlock || to.Class != from.Class || to.Both && to.ID == from.ID {
				continue
			}
			latency, perByte, ok := link(from, to)
			if !ok {
				continue
			}
			w, before := newWork(prompt), to.Remote
			best := m.prefill(to, &w)
			to.Remote = Remote{Server: from.ID, Tokens: h.tokens, Latency: m.fetchLegs(from, to) + latency, PerByte: perByte, Fetched: true}
			if m.pull(to, &w) >= best {
				to.Remote = before
			}
		}
	}
}

// fetchLegs is the seconds that the two legs of a fetch take beside the transfer: from is asked between two steps of its
// batch, and answers with one; to reads the KV then, and answers with a step of its own.
func (m *Model) fetchLegs(from, to *Candidate) float64 {
	return 2*m.HandOff.Seconds() + (untilAStep+1)*from.stepWithOneMore() + to.Prefill.Fixed()
}

// Fetches is how long a prefill server takes for the KV that it fetches of a prompt; false: it fetches none.
func (m *Model) Fetches(c *Candidate, prompt int) (takes time.Duration, ok bool) {
	w := newWork(prompt)
	seconds := m.fetching(c, &w)
	return Duration(seconds), seconds > 0
}

// fetching is the seconds for which c fetches, 0 where it computes all that it lacks. It costs others as much as if it computed.
func (m *Model) fetching(c *Candidate, w *work) float64 {
	if !c.Remote.Fetched || !m.pulls(c, w) {
		return 0
	}
	return m.pull(c, w) - w.behind(c.Remote.Tokens).On(&c.Prefill)
}

// AfterFetch is a prefill server as it is once it has what it fetches.
func (c *Candidate) AfterFetch() Candidate {
	after, tokens := *c, c.Remote.Tokens
	after.Cached = cached.Tokens{GPU: tokens, CPU: max(c.Cached.CPU, tokens), Disk: max(c.Cached.Disk, tokens)}
	after.Remote = Remote{}
	return after
}
