package api

import (
	"bytes"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// Meaning is what one stream event means.
type Meaning struct {
	Content  bool   // generated content, or its end: the engine has answered
	Closes   bool   // content that no token was computed for: an answer, or a part of it, is over
	End      bool   // the stream is complete
	Failure  string // the engine reports a failure
	Finished []int  // choices that end with it
}

// Inspect says what the data of one event of a stream mean.
func (d *Dialect) Inspect(data []byte) Meaning {
	var c Chunk
	return d.ReadEvent(data, &c, nil, nil)
}

func inspectChat(data []byte) Meaning {
	g, choices := inspectChunk(data)
	g.Closes = len(choices) > 0
	for _, c := range choices {
		// The engine opens with a chunk that only names the role.
		delta, finished := c.Get("delta"), c.Get("finish_reason").String() != ""
		says := delta.Get("content").String() != "" || delta.Get("tool_calls").Exists() ||
			delta.Get("reasoning_content").String() != "" || delta.Get("reasoning").String() != ""
		g.Content = g.Content || finished || says || !delta.Get("role").Exists()
		g.Closes = g.Closes && finished && !says
	}
	return g
}

func inspectCompletions(data []byte) Meaning {
	g, choices := inspectChunk(data)
	g.Content, g.Closes = g.Content || len(choices) > 0, len(choices) > 0
	for _, c := range choices {
		text := c.Get("text")
		g.Closes = g.Closes && c.Get("finish_reason").String() != "" && (text.Type != gjson.String || text.Str == "")
	}
	return g
}

// inspectChunk reads what chat and completions have in common.
func inspectChunk(data []byte) (Meaning, []gjson.Result) {
	if string(data) == "[DONE]" {
		return Meaning{End: true}, nil
	}
	if failure := engineError(data); failure != "" {
		return Meaning{Failure: failure}, nil
	}
	choices := gjson.GetBytes(data, "choices").Array()
	var g Meaning
	for _, c := range choices {
		switch finish := c.Get("finish_reason").String(); {
		case finish == "":
		case GaveUp(finish):
			return Meaning{Failure: "the engine ended the answer with an error"}, nil
		default:
			g.Finished = append(g.Finished, int(c.Get("index").Int()))
		}
	}
	return g, choices
}

// GaveUp reports whether the engine gave a choice up, by its finish_reason: error and abort of vLLM and SGLang, cancelled
// and timeout of TensorRT-LLM (executor/result.py CompletionOutput).
func GaveUp(finish string) bool {
	switch finish {
	case "error", "abort", "cancelled", "timeout":
		return true
	}
	return false
}

var finishReason = []byte(`"finish_reason"`)

// mayHaveGivenUp is false of choices none of which was given up, by a search that costs a tenth of a walk: what is text
// has no quotes that are not escaped.
func mayHaveGivenUp(choices []byte) bool {
	for {
		_, behind, found := bytes.Cut(choices, finishReason)
		if !found {
			return false
		}
		value := bytes.TrimLeft(behind, ": \t\r\n")
		if rest, is := bytes.CutPrefix(value, []byte{'"'}); is {
			if reason, _, ends := bytes.Cut(rest, []byte{'"'}); ends && GaveUp(string(reason)) {
				return true
			}
		}
		choices = behind
	}
}

func inspectResponses(data []byte) Meaning {
	if string(data) == "[DONE]" {
		return Meaning{End: true}
	}
	kind := typeOf(data)
	switch string(kind) {
	case "response.created", "response.in_progress", "response.queued",
		"response.output_item.added", "response.content_part.added", "response.reasoning_part.added":
		return Meaning{}
	case "response.completed", "response.incomplete":
		return Meaning{Content: true, Closes: true, End: true}
	case "response.failed":
		return Meaning{Failure: orDefault(gjson.GetBytes(data, "response.error.message").String())}
	case "error":
		return Meaning{Failure: orDefault(gjson.GetBytes(data, "message").String())}
	case "":
		return Meaning{Failure: orDefault(engineError(data))}
	}
	return Meaning{Content: true, Closes: bytes.HasSuffix(kind, []byte(".done"))}
}

func inspectMessages(data []byte) Meaning {
	switch string(typeOf(data)) {
	case "message_start", "content_block_start", "ping":
		return Meaning{}
	case "content_block_stop", "message_delta":
		return Meaning{Content: true, Closes: true}
	case "message_stop":
		return Meaning{Content: true, Closes: true, End: true}
	case "error", "":
		return Meaning{Failure: orDefault(engineError(data))}
	}
	return Meaning{Content: true}
}

// typeOf is the type of an event of responses or messages, empty where it has none.
func typeOf(data []byte) []byte {
	if kind, ok := commonType(data); ok {
		return kind
	}
	return []byte(gjson.GetBytes(data, "type").String())
}

// engineError returns the message of an error object, nested as newer engines
// send it or flat as older ones did, and "" if there is none.
func engineError(data []byte) string {
	if jsonscan.Check(data) != nil {
		return "the engine sent an event that is not JSON"
	}
	found := gjson.GetManyBytes(data, "error", "object", "message")
	switch {
	case found[0].IsObject():
		return orDefault(found[0].Get("message").String())
	case found[0].Type == gjson.String:
		return orDefault(found[0].String())
	case found[1].String() == "error":
		return orDefault(found[2].String())
	}
	return ""
}

// ErrorStatus is the HTTP status that an error event carries, 0 if none.
func ErrorStatus(event []byte) int {
	code := gjson.GetBytes(event, "error.code").Int()
	if code < 400 || code > 599 {
		return 0
	}
	return int(code)
}

func orDefault(message string) string {
	if message == "" {
		return "the engine reported an error"
	}
	return message
}
