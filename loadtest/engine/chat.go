package engine

import (
	"encoding/json"
	"net/http"
)

// chatRequest is the body of /v1/chat/completions.
type chatRequest struct {
	requestFields
	Messages              []message       `json:"messages"`
	Tools                 json.RawMessage `json:"tools"`
	ToolChoice            json.RawMessage `json:"tool_choice"`
	MaxCompletionTokens   *int            `json:"max_completion_tokens"`
	Logprobs              bool            `json:"logprobs"`
	TopLogprobs           *int            `json:"top_logprobs"`
	PromptIDs             []int32         `json:"prompt_token_ids"`      // instead of the messages (TensorRT-LLM)
	AddGenerationPrompt   *bool           `json:"add_generation_prompt"` // true if not given
	ContinueFinalMessage  bool            `json:"continue_final_message"`
	ReturnTokensAsTokenID bool            `json:"return_tokens_as_token_ids"`
	IncludeReasoning      *bool           `json:"include_reasoning"` // true if not given (vLLM)
	StreamReasoning       *bool           `json:"stream_reasoning"`  // likewise (SGLang)
}

// chatWork is a chat request made ready for a rank.
type chatWork struct {
	generation *generation
	call       *toolCall // nil: free text
}

// prepare checks a chat request and turns it into work.
func (e *Engine) prepare(x *exchange, in *chatRequest) (*chatWork, error) {
	if in.MaxCompletionTokens != nil {
		in.MaxTokens = in.MaxCompletionTokens
	}
	g, err := e.newGeneration(&in.requestFields)
	if err != nil {
		return nil, err
	}
	g.kind = "chatcmpl"
	if in.ReturnTokenIDs && in.Stream && e.cfg.Connector == ConnectorSGLang { // SGLang #30917
		return nil, badRequest("return_token_ids", "return_token_ids is not supported with stream=true.")
	}
	if in.TopLogprobs != nil && !in.Logprobs {
		return nil, badRequest("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	}
	if in.Logprobs {
		g.sampling.topLogprobs = 0
		if in.TopLogprobs != nil {
			g.sampling.topLogprobs = *in.TopLogprobs
			if err := checkLogprobs("top_logprobs", *in.TopLogprobs); err != nil {
				return nil, err
			}
		}
	}
	prompt, err := in.PromptIDs, e.checkTokens(in.PromptIDs)
	if err == nil && prompt == nil {
		prompt, err = e.forwardedIDs(in)
	}
	if err == nil && prompt == nil {
		prompt, err = e.render(conversation{
			tools: in.Tools, messages: in.Messages,
			addGeneration: in.AddGenerationPrompt == nil || *in.AddGenerationPrompt,
			continueFinal: in.ContinueFinalMessage,
		})
		prompt = e.truncate(prompt, &in.requestFields)
	}
	if err != nil {
		return nil, err
	}
	g.prompts = [][]int32{prompt}
	if g.transfer, err = e.transferOf(x, &in.requestFields, 1, g.n); err != nil {
		return nil, err
	}
	call, err := e.callOf(in.Tools, in.ToolChoice, in.Messages)
	if err != nil {
		return nil, err
	}
	format, err := in.format()
	if err != nil {
		return nil, err
	}
	if call != nil {
		format = call.format
		if e.cfg.ForcedToolPrefillFails && call.choice != "auto" && g.transfer.prefillLeg && g.sampling.maxTokens == 1 {
			e.releaseUnread(e.ranks[0], g)
			return nil, errInternal
		}
	}
	e.script(g, format)
	g.sampling.reasoning = e.reasoningFor(in)
	return &chatWork{generation: g, call: call}, nil
}

// reasoningFor is how many tokens of reasoning, with the one that ends it, come before the
// answer: none where an answer is continued.
func (e *Engine) reasoningFor(in *chatRequest) int {
	if e.cfg.ReasoningTokens == 0 || in.AddGenerationPrompt != nil && !*in.AddGenerationPrompt {
		return 0
	}
	return e.cfg.ReasoningTokens + 1
}

// hides reports whether nothing is told of the reasoning, nor of the ids and likelihoods of any token: vLLM with a parser
// of reasoning, where the request says so (0.32, parser/abstract_parser.py, parse_delta, and
// entrypoints/openai/chat_completion/serving.py).
func (e *Engine) hides(in *chatRequest) bool {
	return e.isVLLM(32) && e.cfg.ReasoningTokens > 0 && in.IncludeReasoning != nil && !*in.IncludeReasoning
}

// tellsLate reports whether a stream tells the reasoning as one when it is over (SGLang,
// srt/parser/reasoning_parser.py).
func (e *Engine) tellsLate(in *chatRequest) bool {
	return e.cfg.Connector == ConnectorSGLang && in.StreamReasoning != nil && !*in.StreamReasoning
}

// chat serves /v1/chat/completions.
func (e *Engine) chat(x *exchange) error {
	var in chatRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	work, err := e.prepare(x, &in)
	if err != nil {
		return err
	}
	j, err := e.start(x, work.generation)
	if err != nil {
		return err
	}
	defer j.stop()
	if in.Stream {
		return e.streamChat(x, &in, work, j)
	}
	all, err := j.collect(x)
	if err != nil {
		return err
	}
	out := chatCompletion{
		ID: "chatcmpl-" + x.id, Object: "chat.completion", Created: now(), Model: e.modelName(in.Model),
		Usage: e.usageOfAnswers(j.prompts, all), KVTransferParams: handoffOf(all),
	}
	if in.ReturnTokenIDs || work.generation.transfer.prefillLeg && e.cfg.Connector == ConnectorTRTLLM {
		out.PromptTokenIDs = j.prompts[0]
	}
	for i := range all {
		out.Choices = append(out.Choices, e.chatChoice(x, &in, work, i, &all[i]))
		out.Choices[i].Disaggregated = j.contextParams(&all[i])
	}
	e.answerORCA(x)
	writeJSON(x.w, http.StatusOK, out)
	return nil
}

// modelName is how an answer names the model.
func (e *Engine) modelName(asked string) string {
	if asked == "" {
		return e.cfg.Model
	}
	return asked
}

// chatCompletion is the answer, not streamed.
type chatCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       *string      `json:"service_tier"`
	SystemFingerprint *string      `json:"system_fingerprint"`
	Usage             usage        `json:"usage"`
	PromptLogprobs    any          `json:"prompt_logprobs"`
	PromptTokenIDs    []int32      `json:"prompt_token_ids"`
	KVTransferParams  *handoff     `json:"kv_transfer_params"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason"`
	MatchedStop  any           `json:"matched_stop,omitempty"`
	TokenIDs     []int32       `json:"token_ids"`

	Disaggregated *disaggregatedParams `json:"disaggregated_params,omitempty"`
}

type chatMessage struct {
	Role         string     `json:"role"`
	Content      *string    `json:"content"`
	Refusal      *string    `json:"refusal"`
	Annotations  any        `json:"annotations"`
	Audio        any        `json:"audio"`
	FunctionCall any        `json:"function_call"`
	ToolCalls    []chatCall `json:"tool_calls"`
	Reasoning    *string    `json:"reasoning"`

	ReasoningContent *string `json:"reasoning_content,omitempty"`
}

// reasoningOf names the text of reasoning as the engine does: vLLM of today as the first,
// SGLang and TensorRT-LLM as the second.
func (e *Engine) reasoningOf(text string) (reasoning, reasoningContent *string) {
	if e.cfg.Connector == ConnectorSGLang || e.cfg.Connector == ConnectorTRTLLM {
		return nil, &text
	}
	return &text, nil
}

type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
}

// stoppedBy are the two fields that name what ended an answer: vLLM's and SGLang's.
func (e *Engine) stoppedBy(stop any) (reason, matched any) {
	if e.cfg.Connector == ConnectorSGLang {
		return nil, stop
	}
	return stop, nil
}

func (e *Engine) chatChoice(x *exchange, in *chatRequest, work *chatWork, index int, a *answer) chatChoice {
	choice := chatChoice{
		Index:        index,
		Message:      chatMessage{Role: "assistant", Content: &a.text, ToolCalls: []chatCall{}},
		FinishReason: a.finish,
	}
	choice.StopReason, choice.MatchedStop = e.stoppedBy(a.stoppedBy)
	if a.reasoning != "" && !e.hides(in) {
		choice.Message.Reasoning, choice.Message.ReasoningContent = e.reasoningOf(a.reasoning)
	}
	if a.text == "" && a.reasoning != "" { // cut short before its answer
		choice.Message.Content = nil
	} else if work.call != nil {
		choice.Message.Content = nil
		choice.Message.ToolCalls = []chatCall{work.call.chat(callID(x, index), a.text)}
		choice.FinishReason = work.call.finish(a.finish)
	}
	if e.hides(in) {
		return choice
	}
	if in.Logprobs {
		choice.Logprobs = &chatLogprobs{Content: []tokenLogprob{}}
		for _, p := range a.pieces {
			choice.Logprobs.Content = append(choice.Logprobs.Content, e.tokenLogprob(p.ranking))
		}
	}
	if in.ReturnTokenIDs {
		choice.TokenIDs = a.tokens()
	}
	return choice
}
