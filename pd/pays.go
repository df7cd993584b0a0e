package pd

import (
	"sort"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// longestPrompt is the most tokens that PairPaysFrom looks at.
const longestPrompt = 1 << 17

// PairPaysFrom returns from how many prompt tokens on a chat with so many output tokens goes
// to a pair while the servers are idle and hold nothing of the prompt. Below that the second
// leg costs more than decode would lose by computing the prompt itself.
// false: no prompt of up to 131,072 tokens does, or nothing serves the model.
func (ch *Chooser) PairPaysFrom(model string, outputTokens int) (tokens int, ok bool) {
	now := time.Now()
	first := func(int) int { return 0 }
	goes := func(tokens int) bool {
		r := &bindRequest{base: model, arrived: now, req: &Request{
			Dialect: api.Chat, Model: model, Stream: true, PromptTokens: tokens, OutputTokens: outputTokens,
		}}
		view := ch.snapshotFor(r, nil, now)
		idle(view.field.Prefill)
		idle(view.field.Decode)
		chosen, found := ch.Cost.Choose(ch.demand(r, now), &view.field, first)
		return found && chosen.Prefill != ""
	}
	tokens = 1 + sort.Search(longestPrompt, func(n int) bool { return goes(n + 1) })
	return tokens, tokens <= longestPrompt
}

// idle takes all load off servers.
func idle(servers []cost.Candidate) {
	for i := range servers {
		servers[i].Loaded(cost.Candidate{})
	}
}
