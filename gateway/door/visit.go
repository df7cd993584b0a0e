package door

import (
	"sync"
	"time"
)

// Visit is one request's account with its key, from its admission to its end. Its
// methods are for one goroutine; End may be called again and does nothing then.
type Visit struct {
	quota  *quota
	prompt int // tokens, as estimated and charged
	output int // tokens charged so far
	ending sync.Once
}

// Cost is what an answer cost as far as the engine told, in tokens; -1 is unknown.
type Cost struct{ Prompt, Output int }

// Admit lets a request of the key in and charges it with the prompt that is estimated,
// in tokens. The error is a *LimitError.
func (k *Key) Admit(promptTokens int, now time.Time) (*Visit, error) {
	if refused := k.quota.admit(promptTokens, now); refused != nil {
		return nil, refused
	}
	return &Visit{quota: k.quota, prompt: promptTokens}, nil
}

// Limited reports whether the key has a limit per minute.
func (k *Key) Limited() bool { return k.limits.Requests+k.limits.Prompt+k.limits.Output > 0 }

// Standings are what is left of the key's limits per minute, by what they are of.
func (k *Key) Standings(now time.Time) map[string]Standing { return k.quota.standings(now) }

// Output charges tokens that have come.
func (v *Visit) Output(tokens int, now time.Time) {
	if tokens == 0 {
		return
	}
	v.output += tokens
	v.quota.charge(usage{Output: float64(tokens)}, false, now)
}

// End corrects what was charged by what the answer cost, and ends the visit.
func (v *Visit) End(cost Cost, now time.Time) {
	v.ending.Do(func() {
		var u usage
		if cost.Prompt >= 0 {
			u.Prompt = float64(cost.Prompt - v.prompt)
		}
		if cost.Output >= 0 {
			u.Output = float64(cost.Output - v.output)
		}
		v.quota.charge(u, true, now)
	})
}

// Refund ends the visit of a request that was not served, and gives back all of it.
func (v *Visit) Refund(now time.Time) {
	v.ending.Do(func() {
		v.quota.charge(usage{Requests: -1, Prompt: -float64(v.prompt), Output: -float64(v.output)}, true, now)
	})
}
