package engine

import (
	"encoding/json"
	"net/http"
)

// generateNative is the body of SGLang's own /generate.
type generateNative struct {
	Text      json.RawMessage `json:"text"`      // a string or several
	InputIDs  json.RawMessage `json:"input_ids"` // token ids, or several lists
	Stream    bool            `json:"stream"`
	Logprobs  bool            `json:"return_logprob"`
	StartLen  *int            `json:"logprob_start_len"` // first prompt token with logprobs; -1 or none: no prompt tokens
	CacheSalt *string         `json:"cache_salt"`
	Sampling  nativeSampling  `json:"sampling_params"`
	sglangFields
}

// nativeSampling is one object, or a list of one for each prompt: of that the first counts
// for all here.
type nativeSampling struct {
	MaxNewTokens *int        `json:"max_new_tokens"`
	Stop         stopStrings `json:"stop"`
	StopTokenIDs []int32     `json:"stop_token_ids"`
	IgnoreEOS    bool        `json:"ignore_eos"`
	N            *int        `json:"n"`
	Interval     int         `json:"stream_interval"`
}

func (s *nativeSampling) UnmarshalJSON(raw []byte) error {
	type plain nativeSampling
	if each := []plain{}; json.Unmarshal(raw, &each) == nil && len(each) > 0 {
		*s = nativeSampling(each[0])
		return nil
	}
	return json.Unmarshal(raw, (*plain)(s))
}

// nativeTokens is SGLang's default of max_new_tokens.
const nativeTokens = 128

// nativeAnswer is one answer, or in a stream all of it so far.
type nativeAnswer struct {
	Index     int        `json:"index,omitempty"`
	Text      string     `json:"text"`
	OutputIDs []int32    `json:"output_ids"`
	Meta      nativeMeta `json:"meta_info"`
}

type nativeMeta struct {
	ID               string          `json:"id"`
	Finish           *nativeFinish   `json:"finish_reason"`
	PromptTokens     int             `json:"prompt_tokens"`
	CompletionTokens int             `json:"completion_tokens"`
	CachedTokens     int             `json:"cached_tokens"`
	InputLogprobs    []nativeLogprob `json:"input_token_logprobs,omitempty"`
	OutputLogprobs   []nativeLogprob `json:"output_token_logprobs,omitempty"`
}

type nativeFinish struct {
	Type    string `json:"type"`
	Length  int    `json:"length,omitempty"`
	Matched any    `json:"matched,omitempty"`
}

// nativeLogprob is [logprob, token id, null]; the first token of a prompt has none.
type nativeLogprob [3]any

// generate serves /generate, of which only SGLang knows.
func (e *Engine) generate(x *exchange) error {
	var in generateNative
	_, j, err := begin(e, x, &in, e.prepareNative)
	if err != nil {
		return err
	}
	defer j.stop()
	all := make([]nativeAnswer, len(j.sequences))
	for i := range all {
		all[i] = nativeAnswer{Index: i, OutputIDs: []int32{}, Meta: nativeMeta{
			ID: x.id, PromptTokens: len(j.prompts[i/j.n]), InputLogprobs: e.inputLogprobs(&in, j.prompts[i/j.n]),
		}}
	}
	var events *eventStream
	if in.Stream {
		events = newEventStream(x)
	}
	err = j.each(x, func(p piece) error {
		a := &all[p.at]
		a.take(&in, p)
		if events == nil {
			return nil
		}
		events.token()
		return events.data(*a)
	})
	switch {
	case events != nil && err != nil:
		return events.fail(err)
	case events != nil:
		return events.done()
	case err != nil:
		return err
	case len(all) == 1:
		writeJSON(x.w, http.StatusOK, all[0])
	default:
		writeJSON(x.w, http.StatusOK, all)
	}
	return nil
}

func (a *nativeAnswer) take(in *generateNative, p piece) {
	a.Text += p.text
	a.OutputIDs = append(a.OutputIDs, p.token)
	a.Meta.CompletionTokens++
	a.Meta.CachedTokens = p.cached
	if in.Logprobs {
		a.Meta.OutputLogprobs = append(a.Meta.OutputLogprobs, nativeLogprob{p.ranking[0].logprob, p.token, nil})
	}
	switch p.finish {
	case "":
	case finishLength:
		a.Meta.Finish = &nativeFinish{Type: finishLength, Length: a.Meta.CompletionTokens}
	default:
		a.Meta.Finish = &nativeFinish{Type: finishStop, Matched: p.stoppedBy}
	}
}

func (e *Engine) prepareNative(x *exchange, in *generateNative) (*generation, error) {
	tokens := nativeTokens
	if in.Sampling.MaxNewTokens != nil {
		tokens = *in.Sampling.MaxNewTokens
	}
	f := requestFields{
		Stream: in.Stream, MaxTokens: &tokens, N: in.Sampling.N, Stop: in.Sampling.Stop, StopTokenIDs: in.Sampling.StopTokenIDs,
		IgnoreEOS: in.Sampling.IgnoreEOS, CacheSalt: in.CacheSalt, sglangFields: in.sglangFields,
		StreamInterval: in.Sampling.Interval,
	}
	g, err := e.newGeneration(&f)
	if err != nil {
		return nil, err
	}
	g.kind = "gen"
	if in.Logprobs {
		g.sampling.topLogprobs = 0
	}
	raw := in.Text
	if !present(raw) {
		raw = in.InputIDs
	}
	if g.prompts, err = e.parsePrompts(raw, true); err != nil {
		return nil, err
	}
	g.transfer, err = e.transferOf(x, &f, len(g.prompts), g.n)
	return g, err
}

// inputLogprobs are those of the prompt, which only the server that computes it knows.
func (e *Engine) inputLogprobs(in *generateNative, prompt []int32) []nativeLogprob {
	if !in.Logprobs || in.StartLen == nil || *in.StartLen < 0 || e.cfg.Role == RoleDecode {
		return nil
	}
	var out []nativeLogprob
	p := e.language.start("")
	for i, token := range prompt {
		switch {
		case i < *in.StartLen:
		case i == 0:
			out = append(out, nativeLogprob{nil, token, nil})
		default:
			out = append(out, nativeLogprob{e.language.ranking(p, token, 0)[0].logprob, token, nil})
		}
		p = p.after(token)
	}
	return out
}
