package engine

import (
	"encoding/json"
	"net/http"
)

// tokenizeRequest has a prompt, or the messages of a chat.
type tokenizeRequest struct {
	Model                string          `json:"model"`
	Prompt               *string         `json:"prompt"`
	AddSpecialTokens     *bool           `json:"add_special_tokens"` // true if not given
	Messages             []message       `json:"messages"`
	Tools                json.RawMessage `json:"tools"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt"` // true if not given
	ContinueFinalMessage bool            `json:"continue_final_message"`
	ReturnTokenStrs      bool            `json:"return_token_strs"`
}

type tokenizeAnswer struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

// tokenize serves /tokenize.
func (e *Engine) tokenize(x *exchange) error {
	var in tokenizeRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	if _, err := e.adapterOf(in.Model); err != nil {
		return err
	}
	ids, err := e.tokensOf(&in)
	if err != nil {
		return err
	}
	out := tokenizeAnswer{Count: len(ids), MaxModelLen: e.cfg.MaxModelLen, Tokens: ids}
	if in.ReturnTokenStrs {
		for _, id := range ids {
			out.TokenStrs = append(out.TokenStrs, e.language.tok.Name(id))
		}
	}
	writeJSON(x.w, http.StatusOK, out)
	return nil
}

func (e *Engine) tokensOf(in *tokenizeRequest) ([]int32, error) {
	if in.Prompt == nil {
		return e.render(conversation{
			tools: in.Tools, messages: in.Messages,
			addGeneration: in.AddGenerationPrompt == nil || *in.AddGenerationPrompt,
			continueFinal: in.ContinueFinalMessage,
		})
	}
	raw, err := json.Marshal(*in.Prompt)
	if err != nil {
		return nil, badRequest("prompt", "prompt: %v", err)
	}
	prompts, err := e.parsePrompts(raw, in.AddSpecialTokens == nil || *in.AddSpecialTokens)
	if err != nil {
		return nil, err
	}
	return prompts[0], nil
}

// detokenize serves /detokenize. Special tokens appear by their names.
func (e *Engine) detokenize(x *exchange) error {
	var in struct {
		Model  string  `json:"model"`
		Tokens []int32 `json:"tokens"`
	}
	if err := x.decode(&in); err != nil {
		return err
	}
	if _, err := e.adapterOf(in.Model); err != nil {
		return err
	}
	if err := e.checkTokens(in.Tokens); err != nil {
		return err
	}
	text := ""
	for _, id := range in.Tokens {
		text += e.language.tok.Name(id)
	}
	writeJSON(x.w, http.StatusOK, map[string]string{"prompt": text})
	return nil
}

// generateRequest is what the render endpoints make of a request: token ids in, and
// what else a generation needs.
type generateRequest struct {
	RequestID        string          `json:"request_id"`
	TokenIDs         []int32         `json:"token_ids"`
	Features         any             `json:"features"` // media are place-holder tokens here
	SamplingParams   renderedParams  `json:"sampling_params"`
	Model            string          `json:"model"`
	Stream           bool            `json:"stream"`
	StreamOptions    *streamOptions  `json:"stream_options"`
	CacheSalt        *string         `json:"cache_salt"`
	Priority         int             `json:"priority"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`
}

type renderedParams struct {
	MaxTokens    int      `json:"max_tokens"`
	MinTokens    int      `json:"min_tokens"`
	N            int      `json:"n"`
	Stop         []string `json:"stop"`
	StopTokenIDs []int32  `json:"stop_token_ids"`
	IgnoreEOS    bool     `json:"ignore_eos"`
}

func (e *Engine) renderChat(x *exchange) error {
	var in chatRequest
	if err := x.decode(&in); err != nil {
		return err
	}
	work, err := e.prepare(x, &in)
	if err != nil {
		return err
	}
	rendered, err := e.rendered(x, &in.requestFields, work.generation)
	if err != nil {
		return err
	}
	writeJSON(x.w, http.StatusOK, rendered[0])
	return nil
}

// renderMessages and renderResponses are vLLM's since 0.32 (vllm/entrypoints/scale_out
// /render/api_router.py).
func (e *Engine) renderMessages(x *exchange) error {
	var in messagesRequest
	return e.renderAs(x, &in, &in.requestFields, func() (*chatRequest, error) { return e.chatOf(&in) })
}

func (e *Engine) renderResponses(x *exchange) error {
	var in responsesRequest
	return e.renderAs(x, &in, &in.requestFields, in.chat)
}

func (e *Engine) renderAs(x *exchange, in any, f *requestFields, chatOf func() (*chatRequest, error)) error {
	if !e.isVLLM(32) {
		return notFound("", "Not Found")
	}
	if err := x.decode(in); err != nil {
		return err
	}
	chat, err := chatOf()
	if err != nil {
		return err
	}
	work, err := e.prepare(x, chat)
	if err != nil {
		return err
	}
	rendered, err := e.rendered(x, f, work.generation)
	if err != nil {
		return err
	}
	writeJSON(x.w, http.StatusOK, rendered[0])
	return nil
}

func (e *Engine) renderCompletions(x *exchange) error {
	in := newCompletion()
	if err := x.decode(&in); err != nil {
		return err
	}
	g, err := e.prepareCompletion(x, &in)
	if err != nil {
		return err
	}
	rendered, err := e.rendered(x, &in.requestFields, g)
	if err != nil {
		return err
	}
	writeJSON(x.w, http.StatusOK, rendered)
	return nil
}

func (e *Engine) rendered(x *exchange, f *requestFields, g *generation) ([]generateRequest, error) {
	var all []generateRequest
	priority := 0
	if f.Priority != nil {
		priority = int(*f.Priority)
	}
	for _, prompt := range g.prompts {
		limits := g.sampling
		if err := e.checkLength(len(prompt), &limits); err != nil {
			return nil, err
		}
		all = append(all, generateRequest{
			RequestID: g.kind + "-" + x.id, TokenIDs: prompt, Model: e.modelName(f.Model),
			Stream: f.Stream, StreamOptions: f.StreamOptions, CacheSalt: f.CacheSalt, Priority: priority,
			KVTransferParams: f.KVTransferParams,
			SamplingParams: renderedParams{
				MaxTokens: limits.maxTokens, MinTokens: limits.minTokens, N: g.n,
				Stop: limits.stop, StopTokenIDs: limits.stopTokens, IgnoreEOS: limits.ignoreEOS,
			},
		})
	}
	return all, nil
}
