package mix

import (
	"math"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Shares says which part of each class of the traffic is to be prefilled by which of the
// servers that run, so that all kinds of hardware are equally busy. It is nil where there
// is nothing to share: one kind, or no requests.
func Shares(variants []Variant, traffic *demand.Traffic, ttft time.Duration) *share.Table {
	if len(variants) < 2 {
		return nil
	}
	p := Problem{Variants: variants, Use: 1}
	var which []share.Class
	p.Classes, which = classesOf(variants, traffic, ttft)
	parts, _ := p.balance(prefilling)
	t := &share.Table{Prefill: make(map[share.Class][]float64), Tokens: make([]float64, len(variants))}
	for i := range variants {
		t.Variants = append(t.Variants, variants[i].Name)
	}
	whole := 0.0
	for k, class := range which {
		if parts[k] == nil {
			continue
		}
		t.Prefill[class] = parts[k]
		tokens := p.Classes[k].Rate * p.Classes[k].Uncached
		whole += tokens
		for g, part := range parts[k] {
			t.Tokens[g] += part * tokens
		}
	}
	if whole == 0 {
		return nil
	}
	for g := range t.Tokens {
		t.Tokens[g] /= whole
	}
	return t
}

// classesOf are the classes of the traffic, and which they are. A prompt that no hardware
// computes within the objective is planned for without it.
func classesOf(variants []Variant, traffic *demand.Traffic, ttft time.Duration) (all []Class, which []share.Class) {
	for class := range traffic {
		l := &traffic[class]
		prompt, computed, output, ok := l.Mean()
		if !ok {
			continue
		}
		c := Class{Rate: l.Rate(), Prompt: prompt, Uncached: computed, Output: output, TTFT: ttft}
		c.relax(variants)
		all, which = append(all, c), append(which, share.Class(class))
	}
	return all, which
}

// relax gives up the objective of the first token where there is none, or no hardware
// meets it: that is no reason to want no server.
func (c *Class) relax(variants []Variant) {
	quickest := math.Inf(1)
	for i := range variants {
		quickest = min(quickest, variants[i].Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached))
	}
	if c.TTFT == 0 || quickest > c.TTFT.Seconds() {
		c.TTFT = noObjective
	}
}
