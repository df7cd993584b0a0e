package cost

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Decode servers hold the prompts that they decoded behind, and often one that no prefill server holds any more, or only
// a busy one. A prefill server may fetch the KV of a prompt's beginning from there, before it computes the rest.

const (
	// leastFetched is how many tokens a server must lack of what another one holds for fetching them: it is two legs.
	leastFetched = 1024
	// mostHolders is how many decode servers are looked at: those that hold most of the prompt.
	mostHolders = 4
)

// holder is a decode server that holds so many leading tokens of a prompt.
type holder struct {
	*Candidate
	number int // among the decode servers
	tokens int
	answer float64        // seconds until it has answered: behind its prompts and between two steps of its batch, with one more
	behind curve.Features // of the prefill behind these tokens
}

// holders are the decode servers that hold most of a prompt of which so many leading tokens are known for certain, and
// which keep KV for others.
func (f *Candidates) holders(certain int, found []holder) []holder {
	for i := range f.Decode {
		c := &f.Decode[i]
		tokens := min(c.Cached.Confirmed(), certain)
		if tokens < leastFetched || c.FetchBlock == 0 || c.Excluded || c.NoPair || c.Ready > 0 {
			continue
		}
		answer := inSeconds(c.Queue) + (untilAStep+1)*c.stepWithOneMore()
		at := len(found)
		for at > 0 && found[at-1].tokens < tokens {
			at--
		}
		new := holder{Candidate: c, number: i, tokens: tokens, answer: answer}
		if at > 0 && found[at-1].tokens == tokens && found[at-1].Topology == c.Topology { // it is as far from all
			if answer < found[at-1].answer {
				found[at-1] = new
			}
			continue
		}
		if at == mostHolders {
			continue
		}
		if len(found) < mostHolders {
			found = append(found, holder{})
		}
		copy(found[at+1:], found[at:])
		found[at] = new
	}
	for i := range found {
		found[i].tokens -= found[i].tokens % found[i].FetchBlock
	}
	return found
}

// OfferFetches writes for each prefill server from which decode server it would fetch the beginning of a prompt, where
// that is faster than what else it could do about it. So many leading tokens of the prompt are known for certain. Of servers
// that would be faster so, by number, may says whether they are to.
func (m *Model) OfferFetches(f *Candidates, prompt, certain int, links *Links, may func(decode, prefill int) bool) {
	if certain < leastFetched {
		return
	}
	var memory [mostHolders]holder
	found := f.holders(min(certain, prompt-1), memory[:0])
	if len(found) == 0 {
		return
	}
	w, handOff, speeds := newWork(prompt), m.HandOff.Seconds(), links.speeds()
	for i := range found {
		found[i].behind = curve.PrefillFeatures(prompt-found[i].tokens, found[i].tokens)
	}
	for i := range f.Prefill {
		to := &f.Prefill[i]
		if to.FetchBlock == 0 {
			continue
		}
		best, bytes := m.prefill(to, &w), m.TokenBytes(to)
		for k := range found {
			h := &found[k]
			if h.tokens-to.Cached.GPU < leastFetched || to.FetchBlock != h.FetchBlock || to.Class != h.Class || to.Both && to.ID == h.ID {
				continue
			}
			link := &speeds[DistanceOf(&h.Topology, &to.Topology)]
			legs := 2*handOff + h.answer + to.Prefill.Fixed() + link.latency
			takes := legs + float64(h.tokens-to.Cached.GPU)*bytes*link.perByte + h.behind.On(&to.Prefill) // as pull has it
			if takes < best && may(h.number, i) {
				best, to.Remote = takes, Remote{Server: h.ID, Tokens: h.tokens, Latency: legs, PerByte: link.perByte, Fetched: true}
			}
		}
	}
}

// Fetches is how long a prefill server takes for the KV that it fetches of a prompt, and how much longer the prefill would
// take without; 0: it fetches none.
func (m *Model) Fetches(c *Candidate, prompt int) (takes, saves time.Duration) {
	w := newWork(prompt)
	seconds := m.fetching(c, &w)
	if seconds == 0 {
		return 0, 0
	}
	with := m.pull(c, &w)
	return Duration(seconds), max(0, Duration(w.behind(c.Cached.GPU).On(&c.Prefill)-with))
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
