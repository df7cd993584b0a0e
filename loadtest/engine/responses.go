package engine

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
)

// responsesRequest is the body of /v1/responses. Other sampling fields are as in a
// chat request.
type responsesRequest struct {
	requestFields
	Input              json.RawMessage `json:"input"` // a string or a list of items
	Instructions       *string         `json:"instructions"`
	MaxOutputTokens    *int            `json:"max_output_tokens"`
	Tools              json.RawMessage `json:"tools"`
	ToolChoice         json.RawMessage `json:"tool_choice"`
	PreviousResponseID *string         `json:"previous_response_id"`
	Background         bool            `json:"background"`
	EnableMessages     bool            `json:"enable_response_messages"`
	Text               *struct {
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"text"`
}

// chat is the chat request that means the same.
func (in *responsesRequest) chat() (*chatRequest, error) {
	switch {
	case in.PreviousResponseID != nil:
		return nil, notFound("previous_response_id", "Response with id '%s' not found.", *in.PreviousResponseID)
	case in.Background:
		return nil, badRequest("background", "background can only be used when `store` is true")
	}
	out := &chatRequest{requestFields: in.requestFields}
	out.MaxTokens = in.MaxOutputTokens
	if in.Instructions != nil {
		out.Messages = append(out.Messages, textMessage("system", *in.Instructions))
	}
	items, err := in.messages()
	if err != nil {
		return nil, err
	}
	out.Messages = append(out.Messages, items...)
	if out.Tools, out.ToolChoice, err = nestFunctions(in.Tools, in.ToolChoice, "parameters"); err != nil {
		return nil, err
	}
	if in.Text != nil && in.Text.Format != nil {
		out.ResponseFormat = &responseFormat{Type: in.Text.Format.Type}
		if len(in.Text.Format.Schema) > 0 {
			out.StructuredOutputs = &structured{JSON: in.Text.Format.Schema}
		}
	}
	return out, nil
}

// inputItem is one item of the input: a message, or what an earlier answer had beside it
// and a client sends back.
type inputItem struct {
	message
	Type      string          `json:"type"` // empty: a message
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"` // a string or a list of parts
	Summary   []contentPart   `json:"summary"`
}

// messages returns the input as the messages of a chat, as vLLM 0.33 does
// (vllm/entrypoints/openai/responses/utils.py): reasoning, text and calls that follow each
// other are one message of the assistant's.
func (in *responsesRequest) messages() ([]message, error) {
	var text string
	if json.Unmarshal(in.Input, &text) == nil {
		return []message{textMessage("user", text)}, nil
	}
	var items []inputItem
	if json.Unmarshal(in.Input, &items) != nil {
		return nil, badRequest("input", "input must be a string or a list of items")
	}
	var out []message
	for _, item := range items {
		next, err := item.turn(items)
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && item.kind() != "input" && out[n-1].Role == "assistant" && joins(&out[n-1], &next) {
			continue
		}
		out = append(out, next)
	}
	return out, nil
}

// kind is what an item is: an input, or one of what an assistant makes.
func (item *inputItem) kind() string {
	switch {
	case item.Type == "reasoning" || item.Type == "function_call":
		return item.Type
	case item.Role == "assistant" && (item.Type == "" || item.Type == "message"):
		return "text"
	}
	return "input"
}

// turn is the item as a message of its own.
func (item *inputItem) turn(items []inputItem) (message, error) {
	switch {
	case item.Type == "reasoning":
		var parts []contentPart
		_ = json.Unmarshal(item.Content, &parts) // none is none
		var text string
		if parts = append(parts, item.Summary...); len(parts) > 0 {
			text = parts[0].Text
		}
		return message{Role: "assistant", Reasoning: &text}, nil
	case item.Type == "function_call":
		call, err := json.Marshal([]chatCall{{ID: item.CallID, Type: "function", Function: calledByName{item.Name, item.Arguments}}})
		if err != nil {
			return message{}, badRequest("input", "function_call: %v", err)
		}
		return message{Role: "assistant", ToolCalls: call}, nil
	case item.Type == "function_call_output":
		if !calledBefore(items, item.CallID) {
			return message{}, badRequest("input", "No call message found for %s", item.CallID)
		}
		return message{Role: "tool", ToolCallID: item.CallID, Content: item.Output}, nil
	case item.kind() == "text":
		var parts []contentPart
		if json.Unmarshal(item.Content, &parts) == nil && len(parts) > 0 { // of several the first
			return textMessage("assistant", parts[0].Text), nil
		}
		return item.message, nil
	case item.Type == "" || item.Type == "message":
		return item.message, nil
	}
	return message{}, badRequest("input", "Unknown input type: %s", item.Type)
}

// joins puts what one item has into the assistant's message before it, where there is room.
func joins(before, next *message) bool {
	switch {
	case next.Reasoning != nil:
		if before.Reasoning != nil {
			return false
		}
		before.Reasoning = next.Reasoning
	case present(next.ToolCalls):
		var all, more []json.RawMessage
		if present(before.ToolCalls) && json.Unmarshal(before.ToolCalls, &all) != nil || json.Unmarshal(next.ToolCalls, &more) != nil {
			return false
		}
		both, err := json.Marshal(append(all, more...))
		if err != nil {
			return false
		}
		before.ToolCalls = both
	default:
		if present(before.Content) {
			return false
		}
		before.Content = next.Content
	}
	return true
}

// calledBefore reports whether there is a call with the id among the items.
func calledBefore(items []inputItem, id string) bool {
	return slices.ContainsFunc(items, func(i inputItem) bool { return i.Type == "function_call" && i.CallID == id })
}

func textMessage(role, text string) message {
	content, err := json.Marshal(text)
	if err != nil {
		content = json.RawMessage(`""`) // strings always encode
	}
	return message{Role: role, Content: content}
}

// nestedTool is a tool of a chat request, in the order in which engines and clients write it.
type nestedTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        json.RawMessage `json:"name"`
		Description json.RawMessage `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      json.RawMessage `json:"strict,omitempty"`
	} `json:"function"`
}

// nestFunctions turns flat tools ({type, name, parameters}) and the choice among them
// into those of a chat request. schemaKey is where a tool's schema is.
func nestFunctions(rawTools, rawChoice json.RawMessage, schemaKey string) (tools, choice json.RawMessage, err error) {
	var flat []map[string]json.RawMessage
	if present(rawTools) {
		if err := json.Unmarshal(rawTools, &flat); err != nil {
			return nil, nil, badRequest("tools", "tools: %v", err)
		}
	}
	var nested []nestedTool
	for _, t := range flat {
		if schemaKey == "parameters" && string(t["type"]) != `"function"` { // the model is shown no others
			continue
		}
		n := nestedTool{Type: "function"}
		n.Function.Name, n.Function.Description, n.Function.Parameters, n.Function.Strict = t["name"], t["description"], t[schemaKey], t["strict"]
		if schemaKey == "input_schema" {
			n.Function.Parameters = ofObject(n.Function.Parameters)
		}
		nested = append(nested, n)
	}
	if nested != nil {
		if tools, err = json.Marshal(nested); err != nil {
			return nil, nil, badRequest("tools", "tools: %v", err)
		}
	}
	var named struct{ Name string }
	if json.Unmarshal(rawChoice, &named) == nil && named.Name != "" {
		choice, err = json.Marshal(map[string]any{"type": "function", "function": named})
		return tools, choice, err
	}
	return tools, rawChoice, nil
}

// ofObject is the schema of a message's tool: one without a type is of an object.
func ofObject(schema json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(schema, &fields) != nil || fields["type"] != nil {
		return schema
	}
	inner := bytes.TrimSpace(schema)
	inner = bytes.TrimSpace(inner[1 : len(inner)-1])
	if len(inner) > 0 {
		inner = append(bytes.Clone(inner), ',')
	}
	return json.RawMessage("{" + string(inner) + `"type":"object"}`)
}

// responses serves /v1/responses.
func (e *Engine) responses(x *exchange) error {
	var in responsesRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	chat, err := in.chat()
	if err != nil {
		return err
	}
	if e.cfg.Connector == ConnectorTRTLLM { // its class has no salt and drops what it does not know
		chat.CacheSalt = nil
	}
	e.dropRooms(chat)
	work, err := e.prepare(x, chat)
	if err != nil {
		return err
	}
	work.generation.kind, work.generation.n = "resp", 1
	j, err := e.start(x, work.generation)
	if err != nil {
		return err
	}
	defer j.stop()
	s := &responseStream{e: e, x: x, work: work, job: j, response: e.newResponse(x, &in, work)}
	if in.Stream {
		return s.run()
	}
	all, err := j.collect(x)
	if err != nil {
		return err
	}
	for _, p := range all[0].pieces {
		if err := s.add(p); err != nil {
			return err
		}
	}
	if err := s.end(e.usageOfAnswers(j.prompts, all)); err != nil {
		return err
	}
	s.response.KVTransferParams = handoffOf(all)
	if in.EnableMessages && !e.cfg.NoTokenIDs && e.isVLLM(11) {
		s.response.InputMessages = []rawMessage{{Tokens: j.prompts[0], Type: "raw_message_tokens"}}
	}
	writeJSON(x.w, http.StatusOK, s.response)
	return nil
}

// response is the object of /v1/responses.
type response struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	Status             string             `json:"status"` // in_progress, completed or incomplete
	Background         bool               `json:"background"`
	Error              any                `json:"error"`
	IncompleteDetails  *incompleteDetails `json:"incomplete_details"`
	Instructions       *string            `json:"instructions"`
	MaxOutputTokens    int                `json:"max_output_tokens"`
	Metadata           any                `json:"metadata"`
	Model              string             `json:"model"`
	Output             []responseItem     `json:"output"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	PreviousResponseID *string            `json:"previous_response_id"`
	ServiceTier        string             `json:"service_tier"`
	Temperature        float64            `json:"temperature"`
	ToolChoice         json.RawMessage    `json:"tool_choice"`
	Tools              json.RawMessage    `json:"tools"`
	TopP               float64            `json:"top_p"`
	Truncation         string             `json:"truncation"`
	Usage              *responseUsage     `json:"usage"`
	KVTransferParams   *handoff           `json:"kv_transfer_params,omitempty"`
	InputMessages      []rawMessage       `json:"input_messages,omitempty"`
}

// rawMessage is all of a prompt, where the request has enable_response_messages (vLLM 0.32
// entrypoints/openai/responses/protocol.py, ResponseRawMessageAndToken).
type rawMessage struct {
	Message string  `json:"message"`
	Tokens  []int32 `json:"tokens"`
	Type    string  `json:"type"`
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

// responseItem is reasoning, a message or a function call.
type responseItem struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Status    string            `json:"status"`
	Summary   []any             `json:"summary,omitzero"` // of reasoning: always empty
	Role      string            `json:"role,omitempty"`
	Content   []responseContent `json:"content,omitzero"` // of a message, also when it is empty: the SDKs add to it
	CallID    string            `json:"call_id,omitempty"`
	Name      string            `json:"name,omitempty"`
	Arguments *string           `json:"arguments,omitempty"`
}

type responseContent struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Annotations []any  `json:"annotations,omitzero"` // like logprobs, of output_text
	Logprobs    []any  `json:"logprobs,omitzero"`
}

type responseUsage struct {
	InputTokens  int           `json:"input_tokens"`
	InputDetails promptDetails `json:"input_tokens_details"`
	OutputTokens int           `json:"output_tokens"`
	Details      struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

func (e *Engine) newResponse(x *exchange, in *responsesRequest, work *chatWork) *response {
	out := &response{
		ID: x.requestID(&in.requestFields, "resp_"+x.id), Object: "response", CreatedAt: now(), Status: "in_progress",
		Instructions: in.Instructions, Model: e.modelName(in.Model), Output: []responseItem{},
		MaxOutputTokens: work.generation.sampling.maxTokens, ParallelToolCalls: true, ServiceTier: "auto",
		Temperature: 1, ToolChoice: json.RawMessage(`"auto"`), Tools: json.RawMessage(`[]`), TopP: 1, Truncation: "disabled",
	}
	if out.MaxOutputTokens < 0 {
		out.MaxOutputTokens = e.cfg.MaxModelLen - len(work.generation.prompts[0])
	}
	if in.Temperature != nil {
		out.Temperature = *in.Temperature
	}
	if in.TopP != nil {
		out.TopP = *in.TopP
	}
	if present(in.ToolChoice) {
		out.ToolChoice = in.ToolChoice
	}
	if present(in.Tools) {
		out.Tools = in.Tools
	}
	return out
}

// finish completes the object.
func (r *response) finish(u usage, reasoning int, finish string) {
	r.Status = "completed"
	if finish == finishLength {
		r.Status, r.IncompleteDetails = "incomplete", &incompleteDetails{"max_output_tokens"}
	}
	r.Usage = &responseUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	r.Usage.Details.ReasoningTokens = reasoning
	if u.Details != nil {
		r.Usage.InputDetails = *u.Details
	}
}
