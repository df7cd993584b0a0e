package messages

import (
	"cmp"
	"errors"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

// usage counts tokens as Anthropic does: the input is less what was read from a cache or
// written to one, which is told where the engine tells it.
type usage struct {
	Input   int64  `json:"input_tokens"`
	Created *int64 `json:"cache_creation_input_tokens,omitempty"`
	Cached  *int64 `json:"cache_read_input_tokens,omitempty"`
	Output  int64  `json:"output_tokens"`
}

func usageOf(chat gjson.Result) usage {
	u := usage{Input: chat.Get("prompt_tokens").Int(), Output: chat.Get("completion_tokens").Int()}
	details := chat.Get("prompt_tokens_details")
	for _, part := range []struct {
		field string
		into  **int64
	}{{"cached_tokens", &u.Cached}, {"created_cache_tokens", &u.Created}} {
		if n := details.Get(part.field); n.Type == gjson.Number {
			tokens := n.Int()
			*part.into = &tokens
			u.Input -= tokens
		}
	}
	u.Input = max(0, u.Input)
	return u
}

// behind is the usage at the end of a stream whose start told another one. Of an answer that was continued on
// other servers it does not say what was cached of the prompt, and clients keep what the start said of that: the
// input is less by it at the end too.
func (u usage) behind(start usage) usage {
	for _, part := range []struct{ now, before **int64 }{{&u.Cached, &start.Cached}, {&u.Created, &start.Created}} {
		if *part.now == nil && *part.before != nil {
			*part.now = *part.before
			u.Input -= **part.before
		}
	}
	u.Input = max(0, u.Input)
	return u
}

// ending is how an answer ended, as chat tells it.
type ending struct {
	finish  string
	matched *string // the stop sequence that vLLM names; SGLang names none in its messages either
	call    bool    // the answer calls a tool
	whole   bool    // and the call's arguments are complete
}

// read takes what a choice says of its end.
func (e *ending) read(choice gjson.Result) {
	e.finish = cmp.Or(choice.Get("finish_reason").String(), e.finish)
	if stop := choice.Get("stop_reason"); stop.Type == gjson.String {
		matched := stop.String()
		e.matched = &matched
	}
}

var errNoEnd = errors.New("the engine's answer stops without a reason")

// reason is Anthropic's stop_reason and stop_sequence. A call that a stop sequence cut
// short must not run. What the engine did not end, or gave up, is no answer.
func (e *ending) reason() (reason string, sequence *string, err error) {
	switch {
	case e.finish == "" || api.GaveUp(e.finish):
		return "", nil, errNoEnd
	case e.finish == "length":
		return "max_tokens", nil, nil
	case e.call && e.whole:
		return "tool_use", nil, nil
	case e.matched != nil:
		return "stop_sequence", e.matched, nil
	case e.call || e.finish == "tool_calls":
		return "tool_use", nil, nil
	}
	return "end_turn", nil, nil
}
