package engine

// responseStream makes the output item of a response and, when streamed, its events.
type responseStream struct {
	e        *Engine
	x        *exchange
	work     *chatWork
	job      *job
	response *response
	events   *eventStream
	text     string
	finish   string
	said     int
	cached   int
}

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
	Logprobs       []any            `json:"logprobs,omitempty"`
}

// item is the output as it is now, a message or a function call.
func (s *responseStream) item(status string) responseItem {
	if call := s.work.call; call != nil {
		arguments := s.text
		return responseItem{ID: "fc_" + s.x.id, Type: "function_call", Status: status, CallID: "call_" + s.x.id, Name: call.name, Arguments: &arguments}
	}
	item := responseItem{ID: "msg_" + s.x.id, Type: "message", Status: status, Role: "assistant", Content: []responseContent{}}
	if status == "completed" {
		item.Content = []responseContent{s.content()}
	}
	return item
}

func (s *responseStream) content() responseContent {
	return responseContent{Type: "output_text", Text: s.text, Annotations: []any{}, Logprobs: []any{}}
}

// run sends the events of a response from its creation to its end.
func (s *responseStream) run() error {
	s.events = newEventStream(s.x)
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := s.send(responseEvent{Type: kind, Response: s.response}); err != nil {
			return err
		}
	}
	if err := s.job.each(s.x, s.piece); err != nil {
		return s.events.fail(err)
	}
	if err := s.close(); err != nil {
		return err
	}
	s.response.finish(s.item("completed"), s.e.usageOf(s.job.prompts, s.said, s.cached), s.finish)
	return s.send(responseEvent{Type: "response." + s.response.Status, Response: s.response})
}

func (s *responseStream) send(event responseEvent) error {
	event.SequenceNumber = s.events.number
	s.events.number++
	return s.events.named(event.Type, event)
}

// piece sends the text of one token, after opening the item before the first.
func (s *responseStream) piece(p piece) error {
	s.events.token()
	if s.said == 0 {
		if err := s.open(); err != nil {
			return err
		}
	}
	s.said++
	s.cached, s.finish = p.cached, p.finish
	s.text += p.text
	if p.text == "" {
		return nil
	}
	event := responseEvent{Type: "response.output_text.delta", Delta: p.text}
	if s.work.call != nil {
		event.Type = "response.function_call_arguments.delta"
	}
	return s.send(s.at(event))
}

// at adds where in the output an event belongs.
func (s *responseStream) at(event responseEvent) responseEvent {
	first := 0
	event.OutputIndex, event.ItemID = &first, s.item("").ID
	if s.work.call == nil {
		event.ContentIndex = &first
	}
	return event
}

func (s *responseStream) open() error {
	first, item := 0, s.item("in_progress")
	if err := s.send(responseEvent{Type: "response.output_item.added", OutputIndex: &first, Item: &item}); err != nil || s.work.call != nil {
		return err
	}
	part := s.content()
	return s.send(s.at(responseEvent{Type: "response.content_part.added", Part: &part}))
}

func (s *responseStream) close() error {
	if call := s.work.call; call != nil {
		done := responseEvent{Type: "response.function_call_arguments.done", Arguments: &s.text, Name: call.name}
		if err := s.send(s.at(done)); err != nil {
			return err
		}
	} else {
		if err := s.send(s.at(responseEvent{Type: "response.output_text.done", Text: &s.text})); err != nil {
			return err
		}
		part := s.content()
		if err := s.send(s.at(responseEvent{Type: "response.content_part.done", Part: &part})); err != nil {
			return err
		}
	}
	first, item := 0, s.item("completed")
	return s.send(responseEvent{Type: "response.output_item.done", OutputIndex: &first, Item: &item})
}
