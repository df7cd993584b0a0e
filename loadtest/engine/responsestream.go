package engine

// responseStream makes the output items of a response and, when streamed, their events.
type responseStream struct {
	e         *Engine
	x         *exchange
	work      *chatWork
	job       *job
	response  *response
	events    *eventStream // nil: not streamed
	kind      *itemKind    // of the item that is open; nil: none is
	text      string       // of that item
	finish    string
	emitted   int
	cached    int
	reasoning int // tokens of it among those said
}

// itemKind is what an item of each kind and its events are named.
type itemKind struct {
	item   string
	id     string // how ids begin
	part   string // of its content; empty: it has none
	events string // how those of its text begin
}

var (
	reasoningItem = &itemKind{item: "reasoning", id: "rs_", part: "reasoning_text", events: "response.reasoning_text"}
	messageItem   = &itemKind{item: "message", id: "msg_", part: "output_text", events: "response.output_text"}
	callItem      = &itemKind{item: "function_call", id: "fc_", events: "response.function_call_arguments"}
)

// responseEvent is one event; which fields it has depends on its type.
type responseEvent struct {
	Type           string           `json:"type"`
	SequenceNumber int              `json:"sequence_number"`
	Response       *response        `json:"response,omitempty"`
	OutputIndex    *int             `json:"output_index,omitempty"`
	ItemID         string           `json:"item_id,omitempty"`
	Item           *responseItem    `json:"item,omitempty"`
	ContentIndex   *int             `json:"content_index,omitempty"`
	Part           *responseContent `json:"part,omitempty"`
	Delta          string           `json:"delta,omitempty"`
	Text           *string          `json:"text,omitempty"`
	Arguments      *string          `json:"arguments,omitempty"`
	Name           string           `json:"name,omitempty"`
	Logprobs       []any            `json:"logprobs,omitzero"` // of output_text, also when it is empty
}

// run sends the events of a response from its creation to its end.
func (s *responseStream) run() error {
	s.events = newEventStream(s.x)
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := s.send(responseEvent{Type: kind, Response: s.response}); err != nil {
			return err
		}
	}
	err := s.job.each(s.x, func(p piece) error {
		s.events.token()
		return s.add(p)
	})
	if err != nil {
		return s.events.fail(err)
	}
	if err := s.end(s.e.usageOf(s.job.prompts, s.emitted, s.cached)); err != nil {
		return err
	}
	return s.send(responseEvent{Type: "response." + s.response.Status, Response: s.response})
}

func (s *responseStream) send(event responseEvent) error {
	if s.events == nil {
		return nil
	}
	event.SequenceNumber = s.events.number
	s.events.number++
	return s.events.named(event.Type, event)
}

// add takes one token. Its text goes to the item of its kind, which is opened before the
// first; an answer without text is an item without text.
func (s *responseStream) add(p piece) error {
	s.emitted++
	s.cached, s.finish = p.cached, p.finish
	if p.reasoning && p.token != s.e.language.endReasoning {
		s.reasoning++
	}
	if p.text == "" && (p.finish == "" || s.kind != nil) {
		return nil
	}
	if kind := s.kindOf(p); kind != s.kind {
		if err := s.close(); err != nil {
			return err
		}
		if err := s.open(kind); err != nil {
			return err
		}
	}
	if p.text == "" {
		return nil
	}
	s.text += p.text
	return s.send(s.ofText(responseEvent{Type: s.kind.events + ".delta", Delta: p.text}))
}

// end completes the response.
func (s *responseStream) end(u usage) error {
	err := s.close()
	s.response.finish(u, s.reasoning, s.finish)
	return err
}

func (s *responseStream) kindOf(p piece) *itemKind {
	switch {
	case p.reasoning:
		return reasoningItem
	case s.work.call != nil:
		return callItem
	}
	return messageItem
}

// item is the open item as it is now.
func (s *responseStream) item(status string) responseItem {
	item := responseItem{ID: s.kind.id + s.x.id, Type: s.kind.item, Status: status}
	switch s.kind {
	case callItem:
		arguments := s.text
		item.CallID, item.Name, item.Arguments = "call_"+s.x.id, s.work.call.name, &arguments
	case reasoningItem:
		item.Summary = []any{}
	case messageItem:
		item.Role, item.Content = "assistant", []responseContent{}
	}
	if s.kind.part != "" && status == "completed" {
		item.Content = []responseContent{s.content()}
	}
	return item
}

func (s *responseStream) content() responseContent {
	part := responseContent{Type: s.kind.part, Text: s.text}
	if s.kind == messageItem {
		part.Annotations, part.Logprobs = []any{}, []any{}
	}
	return part
}

// at adds where in the output an event belongs.
func (s *responseStream) at(event responseEvent) responseEvent {
	index, first := len(s.response.Output), 0
	event.OutputIndex, event.ItemID = &index, s.kind.id+s.x.id
	if s.kind.part != "" {
		event.ContentIndex = &first
	}
	return event
}

// ofText is at for an event of the item's text.
func (s *responseStream) ofText(event responseEvent) responseEvent {
	if s.kind == messageItem {
		event.Logprobs = []any{}
	}
	return s.at(event)
}

// open begins an item.
func (s *responseStream) open(kind *itemKind) error {
	s.kind, s.text = kind, ""
	index, item := len(s.response.Output), s.item("in_progress")
	if err := s.send(responseEvent{Type: "response.output_item.added", OutputIndex: &index, Item: &item}); err != nil || kind.part == "" {
		return err
	}
	part := s.content()
	return s.send(s.at(responseEvent{Type: "response.content_part.added", Part: &part}))
}

// close ends the open item, if there is one, and adds it to the output.
func (s *responseStream) close() error {
	if s.kind == nil {
		return nil
	}
	text := s.text
	done := responseEvent{Type: s.kind.events + ".done"}
	if s.kind == callItem {
		done.Arguments, done.Name = &text, s.work.call.name
	} else {
		done.Text = &text
	}
	if err := s.send(s.ofText(done)); err != nil {
		return err
	}
	if s.kind.part != "" {
		part := s.content()
		if err := s.send(s.at(responseEvent{Type: "response.content_part.done", Part: &part})); err != nil {
			return err
		}
	}
	index, item := len(s.response.Output), s.item("completed")
	if err := s.send(responseEvent{Type: "response.output_item.done", OutputIndex: &index, Item: &item}); err != nil {
		return err
	}
	s.response.Output = append(s.response.Output, item)
	s.kind = nil
	return nil
}
