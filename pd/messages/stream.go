package messages

import (
	"cmp"
	"errors"

	"github.com/tidwall/gjson"
)

var errToolOrder = errors.New("the engine sent arguments of a tool call that is not open")

// Stream translates the events of one streamed chat completion. The zero value is ready.
type Stream struct {
	message message
	started bool
	end     ending
	usage   usage
	open    string // type of the open block, "" without one
	index   int    // of the open block, or of the next
	call    call
	held    string // text that came inside a tool call, for a block of its own behind it
}

// call is the tool call of the open block.
type call struct {
	id        string
	index     int64
	arguments []byte
}

// event is one event of a streamed message; which fields it has depends on its type.
type event struct {
	Type    string   `json:"type"`
	Message *message `json:"message,omitempty"`
	Index   *int     `json:"index,omitempty"`
	Block   *block   `json:"content_block,omitempty"`
	Delta   any      `json:"delta,omitempty"`
	Usage   *usage   `json:"usage,omitempty"`
}

type delta struct {
	Type     string  `json:"type"`
	Text     *string `json:"text,omitempty"`
	Thinking *string `json:"thinking,omitempty"`
	JSON     *string `json:"partial_json,omitempty"`
}

type lastDelta struct {
	StopReason   string  `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

// Append appends to dst the events that the data of one event of chat becomes, none for
// most that carry no content. The stream is broken after an error.
func (s *Stream) Append(dst, data []byte) ([]byte, error) {
	if string(data) == "[DONE]" {
		return s.finish(dst)
	}
	chunk := gjson.ParseBytes(data)
	if u := chunk.Get("usage"); u.IsObject() {
		s.usage = usageOf(u)
	}
	if !s.started {
		s.message = newMessage(chunk)
	}
	choice := chunk.Get("choices.0")
	if !choice.Exists() {
		return dst, nil
	}
	s.end.read(choice)
	said := choice.Get("delta")
	if thought := reasoning(said); thought != "" {
		dst = s.ensure(dst, thinkingBlock(""))
		dst = s.delta(dst, delta{Type: "thinking_delta", Thinking: &thought})
	}
	if text := said.Get("content").String(); text != "" {
		dst = s.text(dst, text)
	}
	for _, c := range said.Get("tool_calls").Array() {
		var err error
		if dst, err = s.toolCall(dst, c); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// text adds text. Inside a call it waits: engines may put white space between parts of
// one, and a block that is closed cannot be opened again.
func (s *Stream) text(dst []byte, text string) []byte {
	if s.open == "tool_use" {
		s.held += text
		return dst
	}
	dst = s.ensure(dst, textBlock(""))
	return s.delta(dst, delta{Type: "text_delta", Text: &text})
}

// toolCall begins a call at its name and adds to its arguments.
func (s *Stream) toolCall(dst []byte, c gjson.Result) ([]byte, error) {
	id, name, index := c.Get("id").String(), c.Get("function.name").String(), c.Get("index").Int()
	isOpen := s.open == "tool_use" && index == s.call.index && (id == "" || id == s.call.id)
	if name != "" && (!isOpen || id == "") {
		dst = s.close(dst)
		s.call, s.end.call = call{id: id, index: index}, true
		dst = s.ensure(dst, toolBlock(cmp.Or(id, "toolu_"+s.message.ID), name, []byte("{}")))
		isOpen = true
	}
	arguments := c.Get("function.arguments").String()
	if arguments == "" {
		return dst, nil
	}
	if !isOpen {
		return dst, errToolOrder
	}
	s.call.arguments = append(s.call.arguments, arguments...)
	return s.delta(dst, delta{Type: "input_json_delta", JSON: &arguments}), nil
}

// start sends the message's start once: at its first content, when the prompt's usage is
// there.
func (s *Stream) start(dst []byte) []byte {
	if s.started {
		return dst
	}
	s.started = true
	s.message.Usage = s.usage
	s.message.Usage.Output = 0
	return appendEvent(dst, event{Type: "message_start", Message: &s.message})
}

// ensure makes a block of this type the open one.
func (s *Stream) ensure(dst []byte, b block) []byte {
	if s.open == b.Type {
		return dst
	}
	dst = s.close(s.start(dst))
	s.open = b.Type
	index := s.index
	return appendEvent(dst, event{Type: "content_block_start", Index: &index, Block: &b})
}

func (s *Stream) delta(dst []byte, d delta) []byte {
	index := s.index
	return appendEvent(dst, event{Type: "content_block_delta", Index: &index, Delta: d})
}

// close ends the open block, and tells the text that waited for that.
func (s *Stream) close(dst []byte) []byte {
	if s.open == "" {
		return dst
	}
	index := s.index
	dst = appendEvent(dst, event{Type: "content_block_stop", Index: &index})
	s.open, s.index = "", s.index+1
	if s.held == "" {
		return dst
	}
	text := s.held
	s.held = ""
	dst = s.ensure(dst, textBlock(""))
	return s.close(s.delta(dst, delta{Type: "text_delta", Text: &text}))
}

// finish ends the message, if the engine has said how.
func (s *Stream) finish(dst []byte) ([]byte, error) {
	s.end.whole = gjson.ValidBytes(s.call.arguments)
	reason, sequence, err := s.end.reason()
	if err != nil {
		return dst, err
	}
	dst = s.close(s.start(dst))
	total := s.usage.behind(s.message.Usage)
	dst = appendEvent(dst, event{Type: "message_delta", Delta: lastDelta{reason, sequence}, Usage: &total})
	return appendEvent(dst, event{Type: "message_stop"}), nil
}

func appendEvent(dst []byte, e event) []byte {
	dst = append(dst, "event: "+e.Type+"\ndata: "...)
	return append(append(dst, encode(e)...), "\n\n"...)
}
