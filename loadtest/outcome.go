package loadtest

import (
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// An outcome is all that is known of one request when it has ended.
type outcome struct {
	kind      Kind
	detail    string // of a failure, one line
	requestID string // the server's X-Request-Id, "" if it sent none

	due  time.Duration // planned arrival, since the start of the run
	sent time.Time     // first moment of the request on our side
	ttft time.Duration // 0: no content event, or not streamed
	e2e  time.Duration
	took time.Duration // until it ended, however it did
	gaps []time.Duration

	promptTokens int     // as the server counted; 0: it did not say
	cachedTokens int     // of the prompt; 0: none, or it did not say
	repeated     float64 // share of the prompt that an earlier one began with, 0..1
	outputTokens int
	counted      bool // outputTokens is the server's count; else content events, one token each
	text         strings.Builder

	lastContent time.Time
	events      int    // content events
	finish      string // finish_reason
	keepText    bool
}

// tpot returns the mean time per output token after the first; false when there
// was only one token or nothing was streamed.
func (o *outcome) tpot() (time.Duration, bool) {
	if o.outputTokens < 2 || o.ttft == 0 {
		return 0, false
	}
	return (o.e2e - o.ttft) / time.Duration(o.outputTokens-1), true
}

// meets reports whether a whole answer met every limit of slo. A limit on a figure
// that the answer does not have (a gap when there is one token) is met. TTFT and
// ITL are known only of streams; Config.Validate refuses them otherwise.
func (o *outcome) meets(slo SLO) bool {
	within := func(v, limit time.Duration) bool { return limit == 0 || v <= limit }
	for _, gap := range o.gaps {
		if !within(gap, slo.ITL) {
			return false
		}
	}
	tpot, _ := o.tpot()
	return within(o.ttft, slo.TTFT) && within(tpot, slo.TPOT) && within(o.e2e, slo.E2E)
}

// addChunk takes in one JSON object of the answer, an SSE chunk or the whole
// body of an answer that is not streamed, which came at now.
func (o *outcome) addChunk(data []byte, now time.Time) error {
	if !gjson.ValidBytes(data) {
		return failuref(Malformed, "not JSON: %.80q", data)
	}
	chunk := gjson.ParseBytes(data)
	if err := errorObject(chunk); err != nil {
		return err
	}
	choices := chunk.Get("choices")
	if !choices.IsArray() {
		return failuref(Malformed, "no choices: %.80q", data)
	}
	for _, choice := range choices.Array() {
		if err := o.addChoice(choice, now); err != nil {
			return err
		}
	}
	o.addUsage(chunk.Get("usage"))
	return nil
}

// errorObject finds the error in a chunk: OpenAI's {"error": {...}} and the
// older {"object": "error", "message": ...} of vLLM.
func errorObject(chunk gjson.Result) error {
	e := chunk.Get("error")
	if e.Exists() && e.Type != gjson.Null {
		message := e.Get("message").String()
		if message == "" {
			message = e.Raw
		}
		return failuref(ErrorEvent, "%.200s", message)
	}
	if chunk.Get("object").String() == "error" {
		return failuref(ErrorEvent, "%.200s", chunk.Get("message").String())
	}
	return nil
}

func (o *outcome) addChoice(choice gjson.Result, now time.Time) error {
	part := choice.Get("delta") // chat, streamed
	if !part.Exists() {
		part = choice.Get("message") // chat, whole
	}
	text := choice.Get("text").String() // completions
	if part.Exists() {
		text = part.Get("content").String()
	}
	if text != "" || hasOtherContent(part) {
		if o.finish != "" {
			return failuref(Malformed, "content after finish_reason %q", o.finish)
		}
		o.addContent(text, now)
	}
	if reason := choice.Get("finish_reason"); reason.Type == gjson.String {
		o.finish = reason.String()
	}
	return nil
}

// hasOtherContent finds tokens that are no answer text: reasoning and tool calls.
func hasOtherContent(part gjson.Result) bool {
	return part.Get("reasoning").String() != "" ||
		part.Get("reasoning_content").String() != "" ||
		len(part.Get("tool_calls").Array()) > 0
}

func (o *outcome) addContent(text string, now time.Time) {
	if o.events > 0 {
		o.gaps = append(o.gaps, now.Sub(o.lastContent))
	} else {
		o.ttft = now.Sub(o.sent)
	}
	o.events++
	o.lastContent = now
	if o.keepText {
		o.text.WriteString(text)
	}
}

// addUsage takes the newest usage; engines send it once at the end, or growing
// with every chunk.
func (o *outcome) addUsage(usage gjson.Result) {
	if !usage.IsObject() {
		return
	}
	if n := usage.Get("completion_tokens"); n.Type == gjson.Number {
		o.outputTokens, o.counted = int(n.Int()), true
	}
	if n := usage.Get("prompt_tokens"); n.Type == gjson.Number {
		o.promptTokens = int(n.Int())
	}
	if n := usage.Get("prompt_tokens_details.cached_tokens"); n.Type == gjson.Number {
		o.cachedTokens = int(n.Int())
	}
}

// endedAtOnce reports that the model chose an empty answer: its first token was the
// end of the answer, which the server counts as one token or none.
func (o *outcome) endedAtOnce() bool {
	return o.finish == "stop" && o.counted && o.outputTokens <= 1
}

// complete judges an answer that ended cleanly.
func (o *outcome) complete() error {
	switch {
	case o.finish == "":
		return failuref(Truncated, "the answer ended without a finish_reason after %d content events", o.events)
	case o.finish == "error" || o.finish == "abort":
		return failuref(BadFinish, "finish_reason %q after %d content events", o.finish, o.events)
	case o.events == 0 && !o.endedAtOnce():
		return failuref(Empty, "finish_reason %q and no content", o.finish)
	}
	if !o.counted {
		o.outputTokens = o.events
	}
	return nil
}
