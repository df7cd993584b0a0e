package cost

import (
	"math"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// work is the prefill of one prompt, and the transfer of its KV. It is priced on one server
// after the other, and mostly they hold as much of the prompt as the one before.
type work struct {
	prompt   int // tokens
	cached   int // of the features
	features curve.Features
	moved    int     // tokens that are to be moved, of the bytes
	each     float64 // bytes of one, likewise
	bytes    float64 // in whole blocks
}

func newWork(prompt int) work {
	return work{prompt: prompt, features: curve.PrefillFeatures(prompt, 0)}
}

// behind is the features of the prefill behind cached tokens. The last token is computed in
// any case.
func (w *work) behind(cached int) *curve.Features {
	if cached = max(0, min(cached, w.prompt-1)); cached != w.cached {
		w.cached, w.features = cached, curve.PrefillFeatures(w.prompt-cached, cached)
	}
	return &w.features
}

// lacking is how many tokens of the prompt a server has to compute: the last in any case.
func (w *work) lacking(c *Candidate) int {
	return w.prompt - max(0, min(c.Cached.GPU, w.prompt-1))
}

// prefill is the seconds that c needs for the part of the prompt that it lacks, and to
// load what it holds in slower memory: the best of using its GPU only, also CPU memory,
// also disk.
func (m *Model) prefill(c *Candidate, w *work) float64 {
	best := w.behind(c.Cached.GPU).On(&c.Prefill)
	if c.Cached.CPU > c.Cached.GPU || c.Cached.Disk > c.Cached.GPU {
		best = min(best, m.load(c, w))
	}
	if c.Remote.Tokens > c.Cached.GPU {
		best = min(best, m.pull(c, w))
	}
	return best
}

// load is the seconds of a prefill that first loads what c holds in CPU memory, or also
// what it holds on disk.
func (m *Model) load(c *Candidate, w *work) float64 {
	least := math.Inf(1)
	for _, tier := range [...]struct {
		tokens int
		speed  float64
	}{{c.Cached.CPU, m.CPULoad}, {c.Cached.Disk, m.DiskLoad}} {
		extra := tier.tokens - c.Cached.GPU
		if tier.speed <= 0 || extra <= 0 {
			continue
		}
		load := float64(extra) * m.TokenBytes(c) / tier.speed
		least = min(least, load+w.behind(c.Cached.GPU+extra).On(&c.Prefill))
	}
	return least
}
