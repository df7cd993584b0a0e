package engine

import (
	"encoding/json"
	"net/http"
)

// messagesRequest is the body of /v1/messages. Other sampling fields are as in a chat
// request.
type messagesRequest struct {
	requestFields
	Messages      []message       `json:"messages"`
	System        json.RawMessage `json:"system"` // a string or a list of parts
	StopSequences []string        `json:"stop_sequences"`
	Tools         json.RawMessage `json:"tools"`
	ToolChoice    *struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"tool_choice"`
	OutputConfig *struct {
		Format *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

// chatOf is the chat request that the engine makes of a message.
func (e *Engine) chatOf(in *messagesRequest) (*chatRequest, error) {
	if in.MaxTokens == nil {
		return nil, badRequest("max_tokens", "max_tokens: Field required")
	}
	out := &chatRequest{requestFields: in.requestFields}
	out.Stop = append(out.Stop, in.StopSequences...)
	if in.OutputConfig != nil && in.OutputConfig.Format != nil && present(in.OutputConfig.Format.Schema) {
		// vllm/entrypoints/anthropic/serving.py 0.32, _handle_output_config
		out.StructuredOutputs = &structured{JSON: in.OutputConfig.Format.Schema}
	}
	system, err := e.systemOf(in.System, false)
	if err != nil {
		return nil, err
	}
	if system != "" {
		out.Messages = append(out.Messages, textMessage("system", system))
	}
	for _, m := range in.Messages {
		turns, err := e.turns(m)
		if err != nil {
			return nil, err
		}
		out.Messages = append(out.Messages, turns...)
	}
	var choice json.RawMessage
	if in.ToolChoice != nil {
		choice = json.RawMessage(map[string]string{"auto": `"auto"`, "none": `"none"`, "any": `"required"`}[in.ToolChoice.Type])
		if in.ToolChoice.Type == "tool" {
			if choice, err = json.Marshal(in.ToolChoice); err != nil {
				return nil, badRequest("tool_choice", "tool_choice: %v", err)
			}
		}
	}
	out.Tools, out.ToolChoice, err = nestFunctions(in.Tools, choice, "input_schema")
	return out, err
}

// dropsMessageSalt reports whether the engine's class of this request has no cache_salt:
// vLLM's has it since 0.32, those of SGLang and TensorRT-LLM have not.
func (e *Engine) dropsMessageSalt() bool { return !e.isVLLM(32) }

// countTokens serves /v1/messages/count_tokens: the prompt's tokens, of the same body but
// for max_tokens, which need not be there.
func (e *Engine) countTokens(x *exchange) error {
	var in messagesRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	if in.MaxTokens == nil {
		one := 1
		in.MaxTokens = &one
	}
	chat, err := e.chatOf(&in)
	if err != nil {
		return err
	}
	if _, err := e.adapterOf(in.Model); err != nil {
		return err
	}
	prompt, err := e.render(conversation{tools: chat.Tools, messages: chat.Messages, addGeneration: true})
	if err != nil {
		return err
	}
	writeJSON(x.w, http.StatusOK, map[string]int{"input_tokens": len(prompt)})
	return nil
}

// messageAnswer is the object of /v1/messages.
type messageAnswer struct {
	ID               string         `json:"id"`
	Type             string         `json:"type"`
	Role             string         `json:"role"`
	Content          []messageBlock `json:"content"`
	Model            string         `json:"model"`
	StopReason       *string        `json:"stop_reason"`
	StopSequence     *string        `json:"stop_sequence"`
	Usage            messageUsage   `json:"usage"`
	KVTransferParams *handoff       `json:"kv_transfer_params,omitempty"`
}

// messageBlock is reasoning, text or a tool call.
type messageBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature string          `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

type messageUsage struct {
	InputTokens   int  `json:"input_tokens"` // less what was cached or written to the cache
	OutputTokens  int  `json:"output_tokens"`
	CacheRead     *int `json:"cache_read_input_tokens,omitempty"`
	CacheCreation *int `json:"cache_creation_input_tokens,omitempty"`
}

func newMessageUsage(u usage) messageUsage {
	out := messageUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens}
	if u.Details == nil {
		return out
	}
	out.CacheRead, out.CacheCreation = &u.Details.CachedTokens, u.Details.Created
	out.InputTokens -= u.Details.CachedTokens
	if u.Details.Created != nil {
		out.InputTokens -= *u.Details.Created
	}
	return out
}

// stopReason translates a finish reason, and names the stop sequence if one ended it.
// SGLang never does (response_conversion.py).
func (e *Engine) stopReason(finish string, by any, call bool) (reason string, sequence *string) {
	if text, ok := by.(string); ok && e.cfg.Connector != ConnectorSGLang {
		return "stop_sequence", &text
	}
	switch {
	case finish == finishLength:
		return "max_tokens", nil
	case call:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// messages serves /v1/messages.
func (e *Engine) messages(x *exchange) error {
	var in messagesRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	chat, err := e.chatOf(&in)
	if err != nil {
		return err
	}
	if e.dropsMessageSalt() {
		chat.CacheSalt = nil
	}
	e.dropRooms(chat)
	work, err := e.prepare(x, chat)
	if err != nil {
		return err
	}
	work.generation.kind, work.generation.n = "msg", 1
	j, err := e.start(x, work.generation)
	if err != nil {
		return err
	}
	defer j.stop()
	out := messageAnswer{ID: "msg_" + x.id, Type: "message", Role: "assistant", Content: []messageBlock{}, Model: e.modelName(in.Model)}
	if in.Stream {
		return e.streamMessage(x, work, j, out)
	}
	all, err := j.collect(x)
	if err != nil {
		return err
	}
	a := &all[0]
	if a.reasoning != "" {
		out.Content = append(out.Content, messageBlock{Type: "thinking", Thinking: &a.reasoning, Signature: x.id})
	}
	if a.text != "" || a.reasoning == "" {
		block := openBlock(x, work, false)
		switch {
		case work.call == nil:
			block.Text = &a.text
		case json.Valid([]byte(a.text)): // it may have been cut short
			block.Input = json.RawMessage(a.text)
		case work.call.choice == "named" && e.cfg.Connector != ConnectorSGLang:
			// vllm/entrypoints/anthropic/serving.py 0.32, messages_full_converter
			return badRequest("", "Expecting value: line 1 column %d (char %d)", len(a.text)+1, len(a.text))
		}
		out.Content = append(out.Content, *block)
	}
	reason, sequence := e.stopReason(a.finish, a.stoppedBy, work.call != nil)
	out.StopReason, out.StopSequence = &reason, sequence
	out.Usage = newMessageUsage(e.usageOfAnswers(j.prompts, all))
	out.KVTransferParams = handoffOf(all)
	writeJSON(x.w, http.StatusOK, out)
	return nil
}

// messageEvent is one event of a streamed message; which fields it has depends on its
// type.
type messageEvent struct {
	Type         string         `json:"type"`
	Message      *messageAnswer `json:"message,omitempty"`
	Index        *int           `json:"index,omitempty"`
	ContentBlock *messageBlock  `json:"content_block,omitempty"`
	Delta        *messageDelta  `json:"delta,omitempty"`
	Usage        *messageUsage  `json:"usage,omitempty"`
}

// messageDelta is more of a block, or how the message ended.
type messageDelta struct {
	Type         string  `json:"type,omitempty"`
	Text         *string `json:"text,omitempty"`
	Thinking     *string `json:"thinking,omitempty"`
	Signature    string  `json:"signature,omitempty"`
	PartialJSON  *string `json:"partial_json,omitempty"`
	StopReason   string  `json:"stop_reason,omitempty"`
	StopSequence *string `json:"stop_sequence,omitempty"`
}

// messageStream sends the events of one message.
type messageStream struct {
	x         *exchange
	work      *chatWork
	events    *eventStream
	index     int  // of the block that is open
	opened    bool // one is
	reasoning bool // and it is of reasoning
}

// streamMessage sends the message's start, its blocks, and its end.
func (e *Engine) streamMessage(x *exchange, work *chatWork, j *job, start messageAnswer) error {
	s := &messageStream{x: x, work: work, events: newEventStream(x)}
	start.Usage = messageUsage{InputTokens: len(j.prompts[0])} // nothing is known of caches yet
	said := 0
	var last piece
	err := j.each(x, func(p piece) error {
		s.events.token()
		if said == 0 {
			if err := s.send(messageEvent{Type: "message_start", Message: &start}); err != nil {
				return err
			}
		}
		said++
		last = p
		return s.add(p)
	})
	if err != nil {
		return s.events.failMessage(err)
	}
	if err := s.close(); err != nil {
		return err
	}
	reason, sequence := e.stopReason(last.finish, last.stoppedBy, work.call != nil)
	total := newMessageUsage(e.usageOf(j.prompts, said, last.cached))
	for _, event := range []messageEvent{
		{Type: "message_delta", Delta: &messageDelta{StopReason: reason, StopSequence: sequence}, Usage: &total},
		{Type: "message_stop"},
	} {
		if err := s.send(event); err != nil {
			return err
		}
	}
	return s.events.done() // vLLM ends this stream like the others
}

func (s *messageStream) send(event messageEvent) error { return s.events.named(event.Type, event) }

// add sends the text of one token in the block of its kind, which is opened before the
// first.
func (s *messageStream) add(p piece) error {
	if !s.opened || s.reasoning && !p.reasoning && p.text != "" {
		if err := s.close(); err != nil {
			return err
		}
		if err := s.open(p.reasoning); err != nil {
			return err
		}
	}
	if p.text == "" {
		return nil
	}
	delta := &messageDelta{Type: "text_delta", Text: &p.text}
	switch {
	case s.reasoning:
		delta = &messageDelta{Type: "thinking_delta", Thinking: &p.text}
	case s.work.call != nil:
		delta = &messageDelta{Type: "input_json_delta", PartialJSON: &p.text}
	}
	return s.send(messageEvent{Type: "content_block_delta", Index: &s.index, Delta: delta})
}

func (s *messageStream) open(reasoning bool) error {
	s.opened, s.reasoning = true, reasoning
	return s.send(messageEvent{Type: "content_block_start", Index: &s.index, ContentBlock: openBlock(s.x, s.work, reasoning)})
}

// close ends the block that is open, if one is: that of reasoning by a signature.
func (s *messageStream) close() error {
	if !s.opened {
		return nil
	}
	if s.reasoning {
		signed := &messageDelta{Type: "signature_delta", Signature: s.x.id}
		if err := s.send(messageEvent{Type: "content_block_delta", Index: &s.index, Delta: signed}); err != nil {
			return err
		}
	}
	index := s.index
	s.opened = false
	s.index++
	return s.send(messageEvent{Type: "content_block_stop", Index: &index})
}

// openBlock is a block without its text.
func openBlock(x *exchange, work *chatWork, reasoning bool) *messageBlock {
	empty := ""
	switch {
	case reasoning:
		return &messageBlock{Type: "thinking", Thinking: &empty}
	case work.call != nil:
		return &messageBlock{Type: "tool_use", ID: "toolu_" + x.id, Name: work.call.name, Input: json.RawMessage(`{}`)}
	}
	return &messageBlock{Type: "text", Text: &empty}
}
