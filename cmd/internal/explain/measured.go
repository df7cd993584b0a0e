package explain

import (
	"strconv"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// measured prints what was measured beside what was predicted of the alternative that was
// chosen.
func (p *printer) measured(a *gateway.ChoiceStatus) {
	m, chosen := &a.Measured, chosenOf(a)
	if chosen == nil || *m == (gateway.MeasuredStatus{}) {
		return
	}
	held := "-"
	if a.Tokens.Known > 0 || a.Tokens.Guessed {
		held = strconv.Itoa(cachedWhereComputed(chosen))
	}
	rows := [][]string{
		{"", "predicted", "measured"},
		{"queue + prefill", spanText(&chosen.Before), spanText(m.Prefill)},
		{"transfer + kv room + step", spanText(&chosen.After), spanText(m.Transfer)},
		{"first token", spanText(&chosen.First), spanText(m.FirstToken)},
		{"whole answer", "-", spanText(m.Whole)},
		{"prompt tokens", strconv.Itoa(a.PromptTokens), countText(m.PromptTokens)},
		{"  of them cached", held, countText(m.CachedTokens)},
		{"output tokens", strconv.Itoa(a.OutputTokens), countText(m.OutputTokens)},
	}
	p.say("")
	for _, line := range aligned(rows) {
		p.say("%s", line)
	}
}

// chosenTerms is the alternative that was chosen, with its terms as they can be measured.
type chosenTerms struct {
	cost.Explained
	Before, After float64 // prefill's answer, in milliseconds
}

// chosenOf is the alternative that was chosen, nil where none is known.
func chosenOf(a *gateway.ChoiceStatus) *chosenTerms {
	for _, e := range a.Alternatives {
		if e.Chosen {
			return &chosenTerms{e, e.Queue + e.Compute, e.Transfer + e.KVRoom + e.Step}
		}
	}
	return nil
}

// cachedWhereComputed is what the server that computes the prompt holds of it on its GPU.
func cachedWhereComputed(e *chosenTerms) int {
	if e.Prefill == "" {
		return e.DecodeCached
	}
	return e.PrefillCached
}

func spanText(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return strconv.FormatFloat(*ms, 'f', 1, 64)
}

func countText(tokens *int) string {
	if tokens == nil {
		return "-"
	}
	return strconv.Itoa(*tokens)
}
