package access

import "time"

// QuotaCharge is what one request was charged to its key's quota, from its admission to its
// end. Its methods are for one goroutine; End may be called again and does nothing then. The zero value is of a request
// that was not admitted, which has nothing to end.
type QuotaCharge struct {
	quota  *quota // nil: of none
	prompt int    // tokens, as estimated and charged
	output int    // tokens charged so far
	ended  bool
}

// Tokens is what an answer cost as far as the engine reported, in tokens; -1 is unknown.
type Tokens struct{ Prompt, Output int }

// Admit lets a request of the key in and charges it with the prompt that is estimated, in tokens; with none where that
// is not known yet. The error is a *LimitError.
func (k *Key) Admit(promptTokens int, now time.Time) (QuotaCharge, error) {
	if refused := k.quota.admit(promptTokens, now); refused != nil {
		return QuotaCharge{}, refused
	}
	return QuotaCharge{quota: k.quota, prompt: promptTokens}, nil
}

// IsMade reports whether the request was admitted.
func (c *QuotaCharge) IsMade() bool { return c.quota != nil }

// ChargePrompt charges a request that was admitted without its prompt with what that is estimated to have, in tokens, or
// with nothing where the key has not so many left. The error is a *LimitError.
func (c *QuotaCharge) ChargePrompt(tokens int, now time.Time) error {
	if refused := c.quota.chargePrompt(tokens, now); refused != nil {
		return refused
	}
	c.prompt = tokens
	return nil
}

// HasLimits reports whether the key has a limit per minute.
func (k *Key) HasLimits() bool { return k.limits.Requests+k.limits.Prompt+k.limits.Output > 0 }

// LimitStatuses are what is left of the key's limits per minute, by what they are of.
func (k *Key) LimitStatuses(now time.Time) map[string]LimitStatus { return k.quota.statuses(now) }

// AddOutput charges tokens that have come.
func (c *QuotaCharge) AddOutput(tokens int, now time.Time) {
	if tokens == 0 {
		return
	}
	c.output += tokens
	c.quota.charge(usage{Output: float64(tokens)}, false, now)
}

// End corrects what was charged by what the answer cost, and ends the request.
func (c *QuotaCharge) End(cost Tokens, now time.Time) {
	var u usage
	if cost.Prompt >= 0 {
		u.Prompt = float64(cost.Prompt - c.prompt)
	}
	if cost.Output >= 0 {
		u.Output = float64(cost.Output - c.output)
	}
	c.endBy(u, now)
}

// Refund ends a request that was not served, and gives back all of its charge.
func (c *QuotaCharge) Refund(now time.Time) {
	c.endBy(usage{Requests: -1, Prompt: -float64(c.prompt), Output: -float64(c.output)}, now)
}

// endBy ends the request with a last charge.
func (c *QuotaCharge) endBy(u usage, now time.Time) {
	if c.ended || c.quota == nil {
		return
	}
	c.ended = true
	c.quota.charge(u, true, now)
}
