package cost

// Remote is a third server that holds more of a prompt than the one that is to compute
// it, and what the way between them costs: one more tier, beside the server's own CPU
// memory and disk. Its zero value is none.
type Remote struct {
	Server  string  // its ID
	Tokens  int     // leading tokens of the prompt that it holds on its GPU
	Latency float64 // seconds
	PerByte float64 // likewise
	Answer  bool    // it is the KV of an answer that is kept for one reader
	Fetched bool    // by two legs of their own, before the prompt is computed
}

// pull is the seconds of a prefill whose prefix comes from the remote server first.
func (m *Model) pull(c *Candidate, w *work) float64 {
	bytes := float64(c.Remote.Tokens-c.Cached.GPU) * m.TokenBytes(c)
	return c.Remote.Latency + bytes*c.Remote.PerByte + w.behind(c.Remote.Tokens).On(&c.Prefill)
}

// pulls reports whether pulling is faster than every other way to the prefix.
func (m *Model) pulls(c *Candidate, w *work) bool {
	return c.Remote.Tokens > c.Cached.GPU && m.pull(c, w) <= m.prefill(c, w)
}

// prefix is the tokens that a prefill does not compute.
func (m *Model) prefix(c *Candidate, w *work) int {
	if m.pulls(c, w) {
		return c.Remote.Tokens
	}
	return c.Cached.GPU
}

// PullSource is the ID of the server from which the one that computes the prompt should pull
// its prefix, "" when computing it is as fast.
func (m *Model) PullSource(candidates []Candidate, id string, promptTokens int) string {
	w := newWork(promptTokens)
	for i := range candidates {
		if c := &candidates[i]; c.ID == id && m.pulls(c, &w) {
			return c.Remote.Server
		}
	}
	return ""
}

// WorthAwaiting reports whether a request waits until a decode server has what it pulls for another one. Their
// prompts begin with shared tokens alike, of which the server holds held; of the other it lacked lacked. Over the
// link of either server the one pull is done no later than both would be if it brings as much of this prompt as of
// what this one has no use for.
func WorthAwaiting(shared, held, lacked int) bool {
	brings := shared - held
	return brings >= WorthFollowing && 2*brings >= lacked
}
