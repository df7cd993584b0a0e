package load

import (
	"math"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Gauge is a reading that may be missing. Missing is unknown, never zero.
type Gauge struct {
	Value float64
	Known bool
}

// Load is what an engine reports of itself.
type Load struct {
	Engine        string // whose metric names it was read by: vllm, sglang, trtllm, triton, or as configured
	Running       Gauge  // requests in the batch
	Waiting       Gauge  // requests queued, or on a decode server waiting for remote KV
	RunningTokens Gauge  // tokens of KV that the batch holds
	WaitingTokens Gauge  // prompt tokens queued, less what is cached where the engine knows it
	KVUsed        Gauge  // share of KV in use, 0..1 (vLLM's name "_perc" notwithstanding)
	KVTokens      Gauge  // KV capacity in tokens
	BlockTokens   Gauge  // tokens of a KV block
	TokenBytes    Gauge  // bytes of the KV of a token, as it crosses a link
	Prefills      Gauge  // requests that ended since the engine's start, of which PrefillSeconds is the sum
	// PrefillSeconds is how long they took from their first step to their first token.
	PrefillSeconds Gauge
	Adapters       Adapters
	// External is the prompt tokens waiting that no gateway sent, as far as this one
	// knew when it read the load.
	External Gauge
	// ExternalRunning is the requests in the batch that no gateway sent, likewise.
	ExternalRunning Gauge
	// ExternalKV is the tokens of KV in use beyond those of what gateways had there, likewise.
	ExternalKV Gauge
	At         time.Time
}

// FreshAt reports whether the load is young enough to believe: three scrapes.
func (l Load) FreshAt(now time.Time, interval time.Duration) bool {
	return !l.At.IsZero() && now.Sub(l.At) <= freshScrapes*interval
}

// FreshUntil is until when FreshAt is true of a load that has been read.
func (l Load) FreshUntil(interval time.Duration) time.Time { return l.At.Add(freshScrapes * interval) }

const freshScrapes = 3

// KVTokensUsed is how many tokens of KV are in use, as far as the engine says.
func (l Load) KVTokensUsed() Gauge {
	used := l.RunningTokens
	if l.KVUsed.Known && l.KVTokens.Known {
		used = Gauge{Value: max(used.Value, l.KVUsed.Value*l.KVTokens.Value), Known: true}
	}
	return used
}

// Known reports whether any reading of the engine's work was found. An engine whose
// statistics are off answers without them.
func (l Load) Known() bool {
	return l.Running.Known || l.Waiting.Known || l.RunningTokens.Known || l.WaitingTokens.Known || l.KVUsed.Known
}

// Readings are the values of the load, by name; what is unknown is not there.
func (l Load) Readings() map[Reading]float64 {
	known := make(map[Reading]float64)
	for name, g := range map[Reading]Gauge{
		Running: l.Running, Waiting: l.Waiting, RunningTokens: l.RunningTokens, WaitingTokens: l.WaitingTokens,
		KVUsed: l.KVUsed, KVTokens: l.KVTokens, BlockTokens: l.BlockTokens,
		TokenBytes: l.TokenBytes,
	} {
		if g.Known {
			known[name] = g.Value
		}
	}
	return known
}

// FilledFrom returns the load with what it lacks taken from an older one, unless that is
// older by more than keep.
func (l Load) FilledFrom(older Load, keep time.Duration) Load {
	if older.At.IsZero() || l.At.Sub(older.At) > keep {
		return l
	}
	for _, g := range [...]struct{ to, from *Gauge }{
		{&l.Running, &older.Running}, {&l.Waiting, &older.Waiting},
		{&l.RunningTokens, &older.RunningTokens}, {&l.WaitingTokens, &older.WaitingTokens},
		{&l.KVUsed, &older.KVUsed}, {&l.KVTokens, &older.KVTokens},
		{&l.BlockTokens, &older.BlockTokens}, {&l.TokenBytes, &older.TokenBytes}, {&l.External, &older.External}, {&l.ExternalRunning, &older.ExternalRunning},
		{&l.ExternalKV, &older.ExternalKV},
	} {
		if !g.to.Known {
			*g.to = *g.from
		}
	}
	if !l.Adapters.Known {
		l.Adapters = older.Adapters
	}
	if l.Engine == "" {
		l.Engine = older.Engine
	}
	return l
}

// assumedPrompt is how long a waiting prompt is taken to be where the engine counts
// requests only and no request of our own shows it, in tokens.
const assumedPrompt = 1024

// assumedStep is how many tokens an engine is taken to compute in one step.
const assumedStep = 8192

// Beside returns the prompt tokens that wait beyond what the gateways have on the server:
// so many requests of so many tokens. Where the engine counts tokens they are compared,
// else requests.
func (l Load) Beside(requests, tokens int) Gauge {
	if l.WaitingTokens.Known {
		return Gauge{Value: max(0, l.WaitingTokens.Value-float64(tokens)), Known: true}
	}
	if !l.Waiting.Known {
		return Gauge{}
	}
	each := float64(assumedPrompt)
	if requests > 0 {
		each = float64(tokens) / float64(requests)
	}
	return Gauge{Value: max(0, l.Waiting.Value-float64(requests)) * each, Known: true}
}

// ExternalQueue predicts how long the prompts that others sent still wait: their
// tokens by the server's curve, in as few steps as hold them, less the time since they were
// counted.
func (l Load) ExternalQueue(prefill curve.Curve, now time.Time) time.Duration {
	if !l.External.Known || l.External.Value == 0 {
		return 0
	}
	prompts := max(1, l.External.Value/assumedPrompt)
	each := prefill.Seconds(curve.PrefillFeatures(int(l.External.Value/prompts), 0))
	fixed := min(each, prefill.Fixed())
	steps := math.Ceil(l.External.Value / assumedStep)
	seconds := prompts*(each-fixed) + min(prompts, steps)*fixed
	return max(0, time.Duration(seconds*float64(time.Second))-now.Sub(l.At))
}
