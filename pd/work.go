package pd

import "github.com/tandem-gateway/tandem/pools/curve"

// work is the prefill of one prompt, and the transfer of its KV. It is priced on one server
// after the other, and mostly they hold as much of the prompt as the one before.
type work struct {
	prompt   int // tokens
	cached   int // of the features
	features curve.Features
	moved    int     // tokens that are to be moved, of the bytes
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
