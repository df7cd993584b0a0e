package cost

import (
	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Engines evict what was used longest ago, and most of what is new never comes back: it drives out what would. So caches
// are often parted, one part for what came once and a protected one for what came again (segmented LRU: Karedla, Love,
// Wherry, IEEE Computer 1994; 2Q: Johnson, Shasha, VLDB 1994). A fleet has the first part: what is new is in the cache of
// the prefill server that computed it. The protected one is half of the decode servers, from which prefill servers can
// fetch: a prompt that is new costs more there.

// From leastLost to mostLost of the tokens of prompts that came before and were evicted everywhere, the price of what is
// new grows from nothing to all of it. Where less is lost caches are large enough, and to part requests would make pairs
// worse for nothing (loadtest/policy/EXPERIMENTS.md, Protected caches).
const (
	leastLost, mostLost = 0.13, 0.2
	// evictionWorth is the price: for each second of prefill of what is new, at the speed of an average server.
	evictionWorth = 5
)

// NewAndLost is how many of a prompt's so many tokens are new, and how many were lost, where so many leading ones came
// before: those that are held nowhere, in any tier.
func (f *Candidates) NewAndLost(prompt, seen int) (fresh, lost int) {
	held := 0
	for _, servers := range [...][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			held = max(held, servers[i].Cached.GPU, servers[i].Cached.Disk)
		}
	}
	return max(0, prompt-max(seen, held)), max(0, seen-held)
}

// Protect protects, where such a share of prompts is lost that it is of use, the caches of half of the decode servers whose
// caches may be, always of the same ones: of each class those whose IDs have the least hashes.
func (f *Candidates) Protect(lostShare float64) {
	if lostShare <= leastLost {
		for i := range f.Decode {
			f.Decode[i].Protected = false
		}
		return
	}
	var few [64]uint64
	hashes := few[:0]
	for i := range f.Decode {
		hashes = append(hashes, xxhash.Sum64String(f.Decode[i].ID))
	}
	for i := range f.Decode {
		c := &f.Decode[i]
		if c.Protected = false; !c.Protectable() {
			continue
		}
		alike, before := 0, 0
		for k := range f.Decode {
			other := &f.Decode[k]
			if !other.Protectable() || other.Class != c.Class {
				continue
			}
			alike++
			if hashes[k] < hashes[i] || hashes[k] == hashes[i] && other.ID < c.ID {
				before++
			}
		}
		c.Protected = before < alike/2
	}
}

// Protectable reports whether a decode server's cache may be protected: others can fetch from there. One that prefills too
// fills its cache by that, and servers that step together wait for the fullest batch: those are left out.
func (c *Candidate) Protectable() bool { return c.FetchBlock > 0 && !c.Both && c.Group == 0 }

// eviction is what it costs, in seconds, that a request's KV takes the place of other KV in a cache that is protected.
func (f *Candidates) eviction(r *Demand) float64 {
	worth := min(1, (r.LostShare-leastLost)/(mostLost-leastLost))
	if worth <= 0 || r.New <= 0 {
		return 0
	}
	work := curve.PrefillFeatures(r.New, max(0, r.PromptTokens-r.New))
	return evictionWorth * worth * max(0, work.On(&f.reference)-f.reference.Fixed())
}
