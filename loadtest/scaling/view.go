package scaling

import (
	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// view is what a gateway and the engines' gauges show of a cluster at one moment.
type view struct {
	now, coldStart    float64
	scenario          *Scenario
	convert           bool
	queued            int     // requests that wait for prefill
	queuedTokens      float64 // their uncached tokens
	prefillTokens     float64 // those and the ones being computed
	inPrefill         int     // requests waiting or being computed
	inDecode          int     // requests decoding or waiting to
	decodeWaiting     int
	outputWaiting     float64 // tokens predicted of requests that wait for decode
	full              bool    // decode has no room for requests that wait for prefill
	kvShare           float64 // sum over decode servers, of 1 each
	prefillReady      int
	prefillPending    int
	decodeReady       int
	decodePending     int
	prompt, output    sizing.Series
	held              sizing.Series // tokens of KV on decode servers
	meanOutput        float64
	context, kvOfEach float64 // tokens of a sequence: mean of its life, and at its end
}

// watch keeps what a gateway measures of the requests that arrive and end.
type watch struct {
	prompt, output, kv              sizing.Series // finished bins
	promptNow, outputNow, kvNow     float64       // token-seconds of the bin that runs, for kv; tokens for the others
	meanOutput, contextTime, kvTime float64       // of requests that ended lately
}

// watchBins is how many bins of demand are kept: ten minutes of them.
const watchBins = 90

// recently weighs one request in the means of those that ended.
const recently = 1.0 / 300

func (w *watch) recordArrival(r *request) {
	w.promptNow += float64(r.uncached)
	w.outputNow += w.meanOutput
}

func (w *watch) recordEnd(s *sequence) {
	learn := func(mean *float64, sample float64) {
		if *mean == 0 {
			*mean = sample
		}
		*mean += recently * (sample - *mean)
	}
	output := float64(s.output)
	learn(&w.meanOutput, output)
	learn(&w.contextTime, output*(float64(s.prompt)+output/2))
	learn(&w.kvTime, output*s.kv())
}

// bin ends the bin that runs.
func (w *watch) bin() {
	seconds := sizing.Bin.Seconds()
	push := func(s *sizing.Series, now *float64) {
		*s = append(*s, *now/seconds)
		if len(*s) > watchBins {
			*s = (*s)[1:]
		}
		*now = 0
	}
	push(&w.prompt, &w.promptNow)
	push(&w.output, &w.outputNow)
	push(&w.kv, &w.kvNow)
}

// view fills a view.
func (c *cluster) view(w *watch, coldStart float64) *view {
	v := &view{
		now: c.now, coldStart: coldStart, scenario: c.scenario, convert: c.convert,
		queued: c.queue.len(), queuedTokens: c.queue.tokens, prefillTokens: c.queue.tokens, inPrefill: c.queue.len(),
		inDecode: c.inDecode(), decodeWaiting: len(c.waiting), held: w.kv, outputWaiting: float64(len(c.waiting)) * w.meanOutput,
		prompt: w.prompt, output: w.output, meanOutput: w.meanOutput, context: w.contextTime / w.meanOutput, kvOfEach: w.kvTime / w.meanOutput,
	}
	for _, p := range c.prefill.all {
		v.prefillTokens += p.busy() * c.scenario.Hardware.PrefillSpeed
		if p.busy() > 0 {
			v.inPrefill++
		}
	}
	for _, d := range c.decode.all {
		v.kvShare += d.reserved / c.scenario.Hardware.KV
	}
	v.full = c.queue.ordered() && c.queue.len() > 0 && c.free(c.now) != nil
	v.prefillReady, v.prefillPending = c.prefill.counts(c.now)
	v.decodeReady, v.decodePending = c.decode.counts(c.now)
	return v
}
