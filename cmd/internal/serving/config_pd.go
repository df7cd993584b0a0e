package serving

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools/permodel"
)

// pdConfig is how requests wait, are bound and run, and what they are served for.
type pdConfig struct {
	pd.Config

	queue   queue.Config
	hold    scalefromzero.Config
	binding pd.BindMode

	objectives []string // as pd.ParseObjectives reads them
	ttft, itl  []string // as permodel.ParseDurations reads them
}

func defaultPD() pdConfig {
	return pdConfig{
		Config: pd.DefaultConfig(), queue: queue.Default(), hold: scalefromzero.Default(), binding: pd.Late,
		objectives: []string{string(order.Auto)},
	}
}

// bindLimits names what bounds requests: their number, their time and their retries.
func (c *pdConfig) bindLimits(fs *pflag.FlagSet) {
	fs.IntVar(&c.queue.MaxInFlight, "max-in-flight", c.queue.MaxInFlight, "requests past the queue at once, to the end of their streams")
	fs.IntVar(&c.queue.MaxWaiting, "max-waiting", c.queue.MaxWaiting, "requests in the queue at once")
	fs.Int64Var(&c.queue.MaxBytes, "max-held", c.queue.MaxBytes,
		"`bytes` of request bodies that are held at once, and as much again while they arrive, of which one of several tenants with keys leaves others as much as its own bodies have; memory is up to three times as much. Engines' long answers that are not streamed, and long events of streams, have as much again, shared in the same way")
	fs.DurationVar(&c.queue.MaxWait, "max-wait", c.queue.MaxWait, "longest time in the queue")
	fs.DurationVar(&c.hold.MaxWait, "hold", c.hold.MaxWait,
		"time for which requests are held while a role has no server; 0: three cold starts where both roles may go to zero, "+
			"elsewhere they are refused")
	fs.IntVar(&c.hold.MaxWaiting, "max-held-requests", c.hold.MaxWaiting, "requests held at once for want of a server")
	fs.BoolVar(&c.EnginePriority, "engine-priority", c.EnginePriority,
		"send engines the order of service in the priority field; they must schedule by priority, or they refuse it")
	fs.StringVar((*string)(&c.binding), "binding", string(c.binding),
		"`time` at which requests get their servers: arrival, or late, when the prefill server that is best for them is about to be free")
	fs.DurationVar(&c.PrefillTimeout, "prefill-timeout", c.PrefillTimeout, "time for a prefill leg")
	fs.DurationVar(&c.FirstEventTimeout, "first-event-timeout", c.FirstEventTimeout, "time for decode to give the first content of a stream")
	fs.DurationVar(&c.IdleTimeout, "idle-timeout", c.IdleTimeout, "time between two events of a stream, and behind the first of one that may call tools or is not to show its reasoning answer-timeout")
	fs.DurationVar(&c.AnswerTimeout, "answer-timeout", c.AnswerTimeout, "time for an answer that is not streamed")
	fs.DurationVar(&c.HandoffAge, "handoff-age", c.HandoffAge,
		"age at which a hand-off is not used any more; keep it to a third of the engine's KV lease")
	fs.DurationVar(&c.UnresponsiveWait, "doubt-wait", c.UnresponsiveWait,
		"longest time that a request waits while all servers of a role are unresponsive (they answer late) or not probed yet, before it is refused; a role "+
			"that is down for certain for as long makes the gateway unready if nothing can be served without it")
	fs.IntVar(&c.MaxRetries, "max-retries", c.MaxRetries, "legs tried again for one request, beside those whose connection was refused")
	fs.Float64Var(&c.RetryRatio, "retry-ratio", c.RetryRatio, "retries per request over ten seconds, `0..1`")
	fs.IntVar(&c.RetryFloor, "retry-floor", c.RetryFloor, "retries per ten seconds whatever the traffic")
}

// bindService names what requests are served for, and which server does what of a prompt.
func (c *pdConfig) bindService(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.ttft, "ttft-slo", c.ttft,
		"objective for the time to the first token; pairs predicted to miss it lose to those that are not; `duration`, for single "+
			"models as model=duration, 0 is none; a request's header counts before its key's ttft-slo, that before its model's (of an "+
			"adapter, before its base model's), and that before the one for all")
	fs.StringSliceVar(&c.itl, "itl-slo", c.itl, "objective for the time between tokens: `duration`, likewise")
	fs.StringSliceVar(&c.objectives, "objective", c.objectives,
		"what requests are served for: latency (the time to the first token), throughput (requests per server that meet their "+
			"objectives: with a ttft-slo, requests that cannot meet it any more are served last), or auto (throughput for a request that has a "+
			"ttft-slo, latency for one that has none); `objectives`, for single models as "+
			"model=throughput, for a class as class:batch=throughput")
	fs.BoolVar(&c.EnforceDisaggregation, "enforce-disaggregation", c.EnforceDisaggregation,
		"decode servers compute no prompts: without a prefill server requests get 503")
	fs.BoolVar(&c.StrictHandoffs, "strict-handoffs", c.StrictHandoffs,
		"withhold a hand-off from decode that names a host which is not known to be the prefill server's or that of its kv-address (one that "+
			"was not looked up yet, or cannot be, is not); the request is prefilled elsewhere or decoded alone; without it hand-offs with a host "+
			"that is certainly another's are counted and warned of")
	fs.StringVar((*string)(&c.FirstToken), "first-token", string(c.FirstToken),
		"`leg` from which the client gets the first token of an answer: prefill, as soon as prefill has it, while the KV travels, or as much "+
			"later as itl-slo needs, where that is known to give the answer of one engine (vLLM since 0.32 with NIXL; chat and completions); "+
			"or decode, which computes it again behind the transfer")
	fs.StringVar((*string)(&c.AnswerKV), "answer-kv", string(c.AnswerKV),
		"`servers` from which the next turn's prefill may read the KV of their answers: off, none; reported, those that report "+
			"bidirectional_kv_xfer, which vLLM does in its development mode alone; all, every vLLM server with NIXL, where each of them has it: "+
			"a prefill server without it does not answer such a request; tried on simulated engines only")
	fs.DurationVar(&c.AnswerLife, "answer-kv-life", c.AnswerLife,
		"how long after an answer its KV is read; less than the engines' decoder_kv_blocks_ttl")
	fs.BoolVar(&c.FetchKV, "fetch-kv", c.FetchKV,
		"let a prefill server fetch the KV of a prompt's beginning from a decode server that holds it, where that is predicted to be faster than "+
			"computing it and engines are known to take it (vLLM since 0.32 with NIXL, and the prompt's token ids are certain)")
	fs.BoolVar(&c.ProtectKV, "protect-kv", c.ProtectKV,
		"with fetch-kv, and where more than 13 % of the tokens of prompts were evicted everywhere before they came back: what is new of a "+
			"prompt costs more on half of the decode servers, so that their caches hold longer what comes back")
	fs.DurationVar((*time.Duration)(&c.Pieces), "prefill-pieces", time.Duration(c.Pieces),
		"cut prompts whose prefill takes longer than that `time`, where requests wait for their turn and engines are known to take "+
			"it (vLLM since 0.32 with NIXL, and the prompt's token ids are certain): after each piece the rest waits again, shorter requests go "+
			"between, and decode pulls a piece while the next is computed; what is left is cut up to three times where that hides most of its "+
			"transfer; 0 is never")
	fs.DurationVar(&c.DecodePieces, "decode-pieces", c.DecodePieces,
		"cut prompts that a decode server computes by itself so that its streams stand still no longer than that `time` at once, or than the "+
			"request's ITL objective, where engines are known to take it (vLLM since 0.32, and the prompt's token ids are certain): between two "+
			"pieces they go on; 0 is never")
	fs.BoolVar(&c.ContinueStreams, "migrate", c.ContinueStreams,
		"continue streams that break on another pair, by token ids, where engines report them (vLLM 0.10.2, SGLang's completions)")
	fs.BoolVar(&c.ContinueByText, "migrate-by-text", c.ContinueByText,
		"with migrate, continue chats by their text where engines report no token ids (continue_final_message of vLLM and SGLang): "+
			"not exact, the text may be tokenised another way and templates may trim white space")
}

// read reads the settings that are lists of texts. classes are those of priority.
func (c *pdConfig) read(classes []string) (err error) {
	if c.Objective, err = pd.ParseObjectives(c.objectives, classes); err != nil {
		return err
	}
	if c.TTFT, err = permodel.ParseDurations("ttft-slo", c.ttft); err != nil {
		return err
	}
	c.ITL, err = permodel.ParseDurations("itl-slo", c.itl)
	return err
}

func (c *pdConfig) validate() error {
	return errors.Join(c.Validate(), c.queue.Validate(), c.hold.Validate(), c.binding.Validate())
}
