package engine

// chatChunk is one event of a streamed chat completion.
type chatChunk struct {
	ID             string        `json:"id"`
	Object         string        `json:"object"`
	Created        int64         `json:"created"`
	Model          string        `json:"model"`
	Choices        []chunkChoice `json:"choices"`
	Usage          *usage        `json:"usage,omitempty"`
	PromptTokenIDs []int32       `json:"prompt_token_ids,omitempty"`

	KVTransferParams *handoff `json:"kv_transfer_params,omitempty"` // of an answer whose KV is kept
}

type chunkChoice struct {
	Index        int           `json:"index"`
	Delta        chunkDelta    `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
	MatchedStop  any           `json:"matched_stop,omitempty"`
	TokenIDs     []int32       `json:"token_ids,omitempty"`
}

type chunkDelta struct {
	Role      string          `json:"role,omitempty"`
	Content   *string         `json:"content,omitempty"`
	ToolCalls []chatCallDelta `json:"tool_calls,omitempty"`

	Reasoning        *string `json:"reasoning,omitempty"`
	ReasoningContent *string `json:"reasoning_content,omitempty"`
}

// chatStream writes the chunks of one request.
type chatStream struct {
	e       *Engine
	x       *exchange
	in      *chatRequest
	work    *chatWork
	job     *job
	events  *eventStream
	emitted int    // tokens of all answers
	cached  int    // prompt tokens
	begun   []bool // by answer: its role was sent
	called  []bool // by answer: the head of its tool call was sent
	held    []heldCall
	thought []string // by answer: reasoning that is not told yet
	start   chatChunk
}

// heldCall is what a parser holds back of a tool call, by answer.
type heldCall struct {
	tokens    int
	arguments string
}

// callHead is for how many tokens the parser does not know which function is called: what is generated before the
// name and with it (vLLM's for Hermes: <tool_call>, {"name": "..."; the role was sent with the first of them).
const callHead = 8

// streamChat sends a chunk for each token, the role before the first, then the usage
// if it was asked for.
func (e *Engine) streamChat(x *exchange, in *chatRequest, work *chatWork, j *job) error {
	s := &chatStream{
		e: e, x: x, in: in, work: work, job: j, events: newEventStream(x),
		begun: make([]bool, len(j.sequences)), called: make([]bool, len(j.sequences)), held: make([]heldCall, len(j.sequences)),
		thought: make([]string, len(j.sequences)),
		start:   chatChunk{ID: "chatcmpl-" + x.id, Object: "chat.completion.chunk", Created: now(), Model: e.modelName(in.Model)},
	}
	s.events.every = e.cfg.KeepAlive
	if err := j.each(x, s.piece); err != nil {
		return s.events.fail(err)
	}
	if in.StreamOptions != nil && in.StreamOptions.IncludeUsage {
		last := s.start
		last.Choices = []chunkChoice{}
		total := e.usageOf(j.prompts, s.emitted, s.cached)
		last.Usage = &total
		if err := s.events.data(last); err != nil {
			return err
		}
	}
	return s.events.done()
}

// piece sends one token.
func (s *chatStream) piece(p piece) error {
	s.events.token()
	s.emitted++
	s.cached = p.cached
	if !s.begun[p.at] {
		s.begun[p.at] = true
		if err := s.open(p.at); err != nil {
			return err
		}
	}
	if p.reasoning && p.finish == "" && (s.e.hides(s.in) || s.e.tellsLate(s.in)) {
		s.thought[p.at] += p.text
		return nil
	}
	if err := s.tellThought(p.at); err != nil {
		return err
	}
	if s.work.call != nil && !p.reasoning && !s.called[p.at] {
		held := &s.held[p.at]
		held.tokens, held.arguments = held.tokens+1, held.arguments+p.text
		if (held.tokens < callHead || s.e.cfg.WholeCalls) && p.finish == "" {
			return s.holdBack(p)
		}
		p.text, s.called[p.at] = held.arguments, true
		if err := s.openCall(p.at); err != nil {
			return err
		}
	}
	choice := chunkChoice{Index: p.at}
	choice.StopReason, choice.MatchedStop = s.e.stoppedBy(p.stoppedBy)
	finish := p.finish
	switch {
	case p.reasoning && s.e.hides(s.in): // cut short
	case p.reasoning:
		choice.Delta.Reasoning, choice.Delta.ReasoningContent = s.e.reasoningOf(p.text)
	case s.work.call != nil:
		choice.Delta.ToolCalls = []chatCallDelta{{Function: callDelta{Arguments: &p.text}}}
		finish = s.work.call.finish(p.finish)
	default:
		choice.Delta.Content = &p.text
	}
	if finish != "" {
		choice.FinishReason = &finish
	}
	s.describe(&choice, p)
	return s.send(choice, nil, p.result)
}

// tellThought sends as one what was thought, where that is told late.
func (s *chatStream) tellThought(at int) error {
	thought := s.thought[at]
	s.thought[at] = ""
	if thought == "" || !s.e.tellsLate(s.in) {
		return nil
	}
	choice := chunkChoice{Index: at}
	choice.Delta.Reasoning, choice.Delta.ReasoningContent = s.e.reasoningOf(thought)
	return s.send(choice, nil, nil)
}

// describe says of a token what was asked for beside its text.
func (s *chatStream) describe(choice *chunkChoice, p piece) {
	if s.e.hides(s.in) {
		return
	}
	if s.in.Logprobs {
		choice.Logprobs = &chatLogprobs{Content: []tokenLogprob{s.e.tokenLogprob(p.ranking)}}
	}
	if s.in.ReturnTokenIDs {
		choice.TokenIDs = []int32{p.token}
	}
}

// holdBack sends nothing of a token that the parser holds back, unless what the token is was asked for
// (vLLM, chat_completion/serving.py: an empty delta where token ids or logprobs are wanted).
func (s *chatStream) holdBack(p piece) error {
	if !s.in.ReturnTokenIDs && !s.in.Logprobs || s.e.hides(s.in) {
		return s.events.silent()
	}
	choice := chunkChoice{Index: p.at}
	s.describe(&choice, p)
	return s.send(choice, nil, nil)
}

// open sends the role of an answer.
func (s *chatStream) open(at int) error {
	var promptIDs []int32
	if s.in.ReturnTokenIDs {
		promptIDs = s.job.prompts[0]
	}
	empty := ""
	choice := chunkChoice{Index: at, Delta: chunkDelta{Role: "assistant", Content: &empty}}
	return s.send(choice, promptIDs, nil)
}

// openCall sends the head of a tool call.
func (s *chatStream) openCall(at int) error {
	empty := ""
	head := chatCallDelta{
		ID: callID(s.x, at), Type: "function",
		Function: callDelta{Name: s.work.call.name, Arguments: &empty},
	}
	return s.send(chunkChoice{Index: at, Delta: chunkDelta{ToolCalls: []chatCallDelta{head}}}, nil, nil)
}

func (s *chatStream) send(choice chunkChoice, promptIDs []int32, kept *handoff) error {
	chunk := s.start
	chunk.KVTransferParams = kept
	chunk.Choices = []chunkChoice{choice}
	chunk.PromptTokenIDs = promptIDs
	if o := s.in.StreamOptions; o != nil && o.ContinuousUsage {
		emitted := s.emitted
		if choice.Delta.Role != "" {
			emitted-- // it comes before the token (vllm chat_completion/serving.py)
		}
		soFar := s.e.usageOf(s.job.prompts, emitted, s.cached)
		chunk.Usage = &soFar
	}
	return s.events.data(chunk)
}
