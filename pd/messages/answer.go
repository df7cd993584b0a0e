package messages

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"

	"github.com/tidwall/gjson"
)

// message is an answer of the Messages API.
type message struct {
	ID           string  `json:"id"`
	Type         string  `json:"type"`
	Role         string  `json:"role"`
	Content      []block `json:"content"`
	Model        string  `json:"model"`
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        usage   `json:"usage"`
}

// block is one block of an answer's content.
type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"` // of thinking
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

func textBlock(text string) block { return block{Type: "text", Text: &text} }

// thinkingBlock has an empty signature: no engine checks one, and clients refuse a block without (the Vercel AI SDK's
// provider for Anthropic).
func thinkingBlock(text string) block {
	return block{Type: "thinking", Thinking: &text, Signature: new(string)}
}

func toolBlock(id, name string, input []byte) block {
	return block{Type: "tool_use", ID: id, Name: name, Input: input}
}

var errNoChoice = errors.New("the engine's answer is no chat completion")

// FromChat translates a whole chat completion.
func FromChat(answer []byte) ([]byte, error) {
	choice := gjson.GetBytes(answer, "choices.0")
	said := choice.Get("message")
	if !gjson.ValidBytes(answer) || !said.IsObject() {
		return nil, errNoChoice
	}
	m := newMessage(gjson.ParseBytes(answer))
	m.Usage = usageOf(gjson.GetBytes(answer, "usage"))
	if thought := reasoning(said); thought != "" {
		m.Content = append(m.Content, thinkingBlock(thought))
	}
	if text := said.Get("content").String(); text != "" {
		m.Content = append(m.Content, textBlock(text))
	}
	end := ending{whole: true}
	end.read(choice)
	for _, call := range said.Get("tool_calls").Array() {
		end.call = true
		m.Content = append(m.Content, toolBlock(call.Get("id").String(), call.Get("function.name").String(), inputOf(call.Get("function.arguments").String())))
	}
	if len(m.Content) == 0 {
		m.Content = []block{textBlock("")} // clients take the first block for granted
	}
	reason, sequence, err := end.reason()
	if err != nil {
		return nil, err
	}
	m.StopReason, m.StopSequence = &reason, sequence
	return encode(m), nil
}

// newMessage has what an answer or an event of chat tells from the start.
func newMessage(chat gjson.Result) message {
	id := strings.TrimPrefix(chat.Get("id").String(), "chatcmpl-")
	return message{
		ID: "msg_" + strings.TrimPrefix(id, "msg_"), Type: "message", Role: "assistant",
		Content: []block{}, Model: chat.Get("model").String(),
	}
}

// reasoning is the model's thought: SGLang and older versions of vLLM have it by the
// longer name.
func reasoning(said gjson.Result) string {
	return cmp.Or(said.Get("reasoning_content").String(), said.Get("reasoning").String())
}

// inputOf is a call's arguments as an object, an empty one where they are none, as those
// of a call that was cut short.
func inputOf(arguments string) json.RawMessage {
	if gjson.Valid(arguments) && gjson.Parse(arguments).IsObject() {
		return json.RawMessage(arguments)
	}
	return json.RawMessage("{}")
}
