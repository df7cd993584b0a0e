package vllm

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// shareSteps: a step of vLLM on a CPU costs much whatever is in it. Twenty short prompts that come at
// once are computed in a few steps by one engine that gets them directly, and so they are
// behind the gateway: with the same engine alone behind it (what the gateway adds), and with a pair,
// which shares this machine's two cores: times say little there, steps all.
func shareSteps(t *testing.T, p, d *engine) {
	one := startGateway(t, nil, []*engine{d})
	late := startGateway(t, []*engine{p}, []*engine{d})
	pairs := startGateway(t, []*engine{p}, []*engine{d}, "pairs-first: true")
	arrival := startGateway(t, []*engine{p}, []*engine{d}, "binding: arrival")
	// One prompt a step takes the same engine 45 steps, and a pair 77.
	ways := []struct {
		name, url string
		most      float64   // times as many steps as vLLM alone; 0: that depends on which server gets how many
		steps     []float64 // of both engines for a burst, by round
		last      []float64 // seconds until the last of it has its first token
	}{
		{name: "vLLM alone", url: d.url, most: 1}, {name: "the same, gateway", url: one.url, most: 2},
		{name: "late, pairs first", url: pairs.url, most: 4}, {name: "late", url: late.url}, {name: "arrival", url: arrival.url},
	}
	steps := func(e *engine) float64 { return metric(t, e.url, "vllm:iteration_tokens_total_count") }
	const rounds = 6 // the first teaches
	for round := range rounds {
		for i := range ways {
			w := &ways[i]
			before := steps(p) + steps(d)
			first := burst(t, w.url, uint64(10_000+1000*round+100*i))
			if round > 0 {
				w.last, w.steps = append(w.last, slices.Max(first)), append(w.steps, steps(p)+steps(d)-before)
			}
		}
	}
	for _, w := range ways {
		if took, alone := median(w.steps), median(ways[0].steps); w.most > 0 && took > w.most*alone {
			t.Errorf("%s: a burst took %.0f steps, %.0f with vLLM alone", w.name, took, alone)
		}
		t.Logf("%-18s %.0f steps, last first token after %.2f s (each round)", w.name, w.steps, w.last)
	}
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// burst sends twenty prompts of fifty words at once, and returns when each has its first token.
func burst(t *testing.T, url string, seed uint64) (first []float64) {
	t.Helper()
	first = make([]float64, 20)
	var all sync.WaitGroup
	began := time.Now()
	for i := range first {
		all.Go(func() {
			body := map[string]any{"prompt": text(seed+uint64(i), 50), "max_tokens": 4, "stream": true}
			_, err := tryAsk(url, body, func(pieces int) {
				if pieces == 1 {
					first[i] = time.Since(began).Seconds()
				}
			})
			if err != nil {
				t.Error(fmt.Errorf("request %d: %w", i, err))
			}
		})
	}
	all.Wait()
	return first
}
