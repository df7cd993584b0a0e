package pd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/pools"
)

// Where much KV is evicted before it is asked for again, the caches of half of the decode servers are protected from prompts
// that are new (cost.Candidates.Protect). What is new is told by the prompts that came before (package ghost):
//
//  1. as a request's prompt is matched, it is looked up how much of it came before (lookUpSeen);
//  2. as it is priced, what of that is held nowhere is lost, and what neither came before nor is held is new (setNew);
//  3. once it has its servers, where that was decided, it is one that came (enterSeen).

// returning is what of a request's prompt comes back, in tokens.
type returning struct {
	memory  *ghost.Memory // nil: nothing is known of it
	seen    int           // leading tokens that came before
	new     int           // tokens that did not, and are held nowhere
	lost    int           // tokens that did, and are held nowhere
	entered bool
}

// lookAgain has it looked up anew how much of a prompt came before, since more of it is known. Of one that was entered what
// is known of it stays: it would find itself.
func (r *returning) lookAgain() {
	if !r.entered {
		*r = returning{}
	}
}

// knownBlocks is a request's prompt as its hashes are known.
func (r *bindRequest) knownBlocks() ghost.Prompt {
	c := r.prefix.hits.Chain()
	return ghost.Prompt{Blocks: len(c.Hashes), BlockTokens: c.BlockTokens, Hash: func(block int) uint64 { return uint64(c.Hashes[block]) }}
}

// lookUpSeen looks up how much of a matched prompt came before. A proxy's requests fetch nothing; a piece and a
// continuation belong to a prompt that is there already.
func (sn *Snapshotter) lookUpSeen(r *bindRequest) {
	if sn.Ghosts == nil || r.returns.memory != nil || r.begun != nil || r.continues || r.req.proxied {
		return
	}
	prompt := r.knownBlocks()
	if prompt.Blocks == 0 {
		return
	}
	r.returns.memory = sn.Ghosts.Of(r.base)
	r.returns.seen = r.returns.memory.Seen(&prompt)
}

// setNew works out what of a request's prompt is new, and what is lost: whole blocks, of the tokens that are known.
func (r *bindRequest) setNew(v *snapshot) {
	if r.returns.memory == nil {
		return
	}
	c := r.prefix.hits.Chain()
	r.returns.new, r.returns.lost = v.candidates.NewAndLost(len(c.Hashes)*c.BlockTokens, r.returns.seen)
}

// enterSeen notes that a request's prompt came, and what of it was lost.
func (sn *Snapshotter) enterSeen(r *bindRequest) {
	if r.returns.memory == nil || r.returns.entered {
		return
	}
	r.returns.entered = true
	prompt := r.knownBlocks()
	r.returns.memory.Enter(&prompt, r.returns.lost, func() int { return sn.protectable(r) })
}

// protectable is how many tokens of KV the servers have room for whose caches may be protected, as far as they say, and
// say what they hold.
func (sn *Snapshotter) protectable(r *bindRequest) (tokens int) {
	now := time.Now()
	for _, s := range serving(nil, sn.Fleet.Servers(), r.base, pools.Decode, now) {
		if c := candidateOf(s, now); c.Protectable() && r.prefix.hits.Knows(s.ID()) {
			tokens += kvTokens(s, now)
		}
	}
	return tokens
}

// protects reports whether caches may be protected: it is of use where prefill fetches from them.
func (sn *Snapshotter) protects() bool {
	return sn.Ghosts != nil && sn.Config.ProtectKV && sn.Config.FetchKV
}

// protect protects the caches of some decode servers where that is of use.
func (sn *Snapshotter) protect(v *snapshot) {
	if sn.protects() && v.model == v.base {
		v.candidates.Protect(sn.Ghosts.Of(v.base).LostShare())
	}
}

// lostShares is which share of prompts is lost, as a metric.
type lostShares struct {
	of    *ghost.Memories
	share *prometheus.Desc
}

// LostShares is the metric of which share of prompts came before and was lost, by model.
func LostShares(of *ghost.Memories) prometheus.Collector {
	return &lostShares{of, prometheus.NewDesc("tandem_kv_lost_share",
		"Share of the tokens of prompts lately that came before, and that no server held any more when they came again, of those that this gateway decided about; "+
			"0 where no cache may be protected.",
		[]string{"model"}, nil)}
}

// Describe is prometheus.Collector's.
func (l *lostShares) Describe(to chan<- *prometheus.Desc) { to <- l.share }

// Collect is prometheus.Collector's.
func (l *lostShares) Collect(to chan<- prometheus.Metric) {
	for model, memory := range l.of.All() {
		to <- prometheus.MustNewConstMetric(l.share, prometheus.GaugeValue, memory.LostShare(), model)
	}
}
