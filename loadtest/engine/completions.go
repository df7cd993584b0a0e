package engine

import (
	"encoding/json"
	"net/http"
)

// completionRequest is the body of /v1/completions.
type completionRequest struct {
	requestFields
	Prompt           json.RawMessage `json:"prompt"`
	Suffix           *string         `json:"suffix"`
	Echo             bool            `json:"echo"`
	Logprobs         *int            `json:"logprobs"`
	AddSpecialTokens *bool           `json:"add_special_tokens"` // true if not given
}

// defaultCompletionTokens is OpenAI's max_tokens of a completion that names none.
const defaultCompletionTokens = 16

// newCompletion is a request before its body is decoded: one that says null has no bound (vllm
// entrypoints/openai/completion/protocol.py, max_tokens: int | None = 16).
func newCompletion() completionRequest {
	n := defaultCompletionTokens
	return completionRequest{requestFields: requestFields{MaxTokens: &n}}
}

// prepareCompletion checks a completion request and turns it into work.
func (e *Engine) prepareCompletion(x *exchange, in *completionRequest) (*generation, error) {
	if in.CacheSalt != nil && e.cfg.Connector == ConnectorTRTLLM { // its chat alone has it
		return nil, badRequest("cache_salt", "Extra inputs are not permitted")
	}
	g, err := e.newGeneration(&in.requestFields)
	if err != nil {
		return nil, err
	}
	g.kind = "cmpl"
	if in.Suffix != nil && *in.Suffix != "" {
		return nil, badRequest("suffix", "suffix is not currently supported")
	}
	if in.Logprobs != nil {
		if err := checkLogprobs("logprobs", *in.Logprobs); err != nil {
			return nil, err
		}
		g.sampling.topLogprobs = *in.Logprobs
	}
	if g.prompts, err = e.parsePrompts(in.Prompt, in.AddSpecialTokens == nil || *in.AddSpecialTokens); err != nil {
		return nil, err
	}
	for i := range g.prompts {
		g.prompts[i] = e.truncate(g.prompts[i], &in.requestFields)
	}
	if g.transfer, err = e.transferOf(x, &in.requestFields, len(g.prompts), g.n); err != nil {
		return nil, err
	}
	format, err := in.format()
	if err != nil {
		return nil, err
	}
	e.script(g, format)
	return g, nil
}

// completions serves /v1/completions.
func (e *Engine) completions(x *exchange) error {
	in := newCompletion()
	g, j, err := begin(e, x, &in, e.prepareCompletion)
	if err != nil {
		return err
	}
	defer j.stop()
	if in.Stream {
		return e.streamCompletion(x, &in, j)
	}
	all, err := j.collect(x)
	if err != nil {
		return err
	}
	total := e.usageOfAnswers(j.prompts, all)
	out := completion{
		ID: "cmpl-" + x.id, Object: "text_completion", Created: now(), Model: e.modelName(in.Model),
		Usage: &total, KVTransferParams: handoffOf(all),
	}
	if g.transfer.prefillLeg && e.cfg.Connector == ConnectorTRTLLM {
		out.PromptTokenIDs = j.prompts[0]
	}
	for i := range all {
		out.Choices = append(out.Choices, e.completionChoice(&in, j, i, &all[i]))
		out.Choices[i].Disaggregated = j.contextParams(&all[i])
	}
	e.answerORCA(x)
	writeJSON(x.w, http.StatusOK, out)
	return nil
}

// completion is an answer, or one event of a streamed one.
type completion struct {
	ID               string             `json:"id"`
	Object           string             `json:"object"`
	Created          int64              `json:"created"`
	Model            string             `json:"model"`
	Choices          []completionChoice `json:"choices"`
	Usage            *usage             `json:"usage,omitempty"`
	KVTransferParams *handoff           `json:"kv_transfer_params,omitempty"`
	PromptTokenIDs   []int32            `json:"prompt_token_ids,omitempty"` // of TensorRT-LLM's context
}

type completionChoice struct {
	Index          int                 `json:"index"`
	Text           string              `json:"text"`
	Logprobs       *completionLogprobs `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"`
	StopReason     any                 `json:"stop_reason"`
	PromptTokenIDs []int32             `json:"prompt_token_ids,omitempty"`
	TokenIDs       []int32             `json:"token_ids,omitempty"`

	Disaggregated *disaggregatedParams `json:"disaggregated_params,omitempty"`
}

func (e *Engine) completionChoice(in *completionRequest, j *job, index int, a *answer) completionChoice {
	choice := completionChoice{Index: index, Text: a.text, FinishReason: &a.finish, StopReason: a.stoppedBy}
	prompt := j.prompts[index/j.n]
	if in.Echo {
		choice.Text = e.language.tok.Decode(prompt) + a.text
	}
	if in.Logprobs != nil {
		choice.Logprobs = e.completionLogprobs(a.pieces, len(choice.Text)-len(a.text))
	}
	if in.ReturnTokenIDs {
		choice.PromptTokenIDs, choice.TokenIDs = prompt, a.tokens()
	}
	return choice
}

// streamCompletion sends a chunk for each token, then the usage if it was asked for.
func (e *Engine) streamCompletion(x *exchange, in *completionRequest, j *job) error {
	events := newEventStream(x)
	start := completion{ID: "cmpl-" + x.id, Object: "text_completion", Created: now(), Model: e.modelName(in.Model)}
	begun := make([]bool, len(j.sequences))
	offset := make([]int, len(j.sequences))
	said, cached := 0, 0
	err := j.each(x, func(p piece) error {
		events.token()
		said++
		cached = p.cached
		choice := completionChoice{Index: p.at, Text: p.text, StopReason: p.stoppedBy}
		if p.finish != "" {
			choice.FinishReason = &p.finish
		}
		prompt := j.prompts[p.at/j.n]
		if !begun[p.at] && in.Echo {
			choice.Text = e.language.tok.Decode(prompt) + p.text
		}
		if in.Logprobs != nil {
			choice.Logprobs = e.completionLogprobs([]piece{p}, offset[p.at]+len(choice.Text)-len(p.text))
		}
		if in.ReturnTokenIDs {
			choice.TokenIDs = []int32{p.token}
			if !begun[p.at] {
				choice.PromptTokenIDs = prompt
			}
		}
		begun[p.at] = true
		offset[p.at] += len(choice.Text)
		chunk := start
		chunk.KVTransferParams = p.result
		chunk.Choices = []completionChoice{choice}
		if o := in.StreamOptions; o != nil && o.ContinuousUsage {
			soFar := e.usageOf(j.prompts, said, cached)
			chunk.Usage = &soFar
		}
		return events.data(chunk)
	})
	if err != nil {
		return events.fail(err)
	}
	if in.StreamOptions != nil && in.StreamOptions.IncludeUsage {
		last := start
		last.Choices = []completionChoice{}
		total := e.usageOf(j.prompts, said, cached)
		last.Usage = &total
		if err := events.data(last); err != nil {
			return err
		}
	}
	return events.done()
}
