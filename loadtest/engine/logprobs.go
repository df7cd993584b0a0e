package engine

// tokenLogprob is a token with its logarithmic probability, as chat answers have it.
type tokenLogprob struct {
	topLogprob
	TopLogprobs []topLogprob `json:"top_logprobs"`
}

type topLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // numbers, not base64
}

// tokenLogprob describes the token said (the first of the ranking) and, if any were
// asked for, the most likely ones, among them the token said.
func (e *Engine) tokenLogprob(ranking []likely) tokenLogprob {
	out := tokenLogprob{topLogprob: e.topLogprob(ranking[0]), TopLogprobs: []topLogprob{}}
	for _, l := range ranking[:len(ranking)-1] {
		out.TopLogprobs = append(out.TopLogprobs, e.topLogprob(l))
	}
	return out
}

func (e *Engine) topLogprob(l likely) topLogprob {
	name := e.language.tok.Name(l.token)
	out := topLogprob{Token: name, Logprob: l.logprob, Bytes: []int{}}
	for _, b := range []byte(name) {
		out.Bytes = append(out.Bytes, int(b))
	}
	return out
}

// completionLogprobs is how /v1/completions reports them: one entry for each token.
type completionLogprobs struct {
	TextOffset    []int                `json:"text_offset"`
	TokenLogprobs []float64            `json:"token_logprobs"`
	Tokens        []string             `json:"tokens"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
}

// completionLogprobs of pieces whose text begins at an offset in bytes.
func (e *Engine) completionLogprobs(pieces []piece, offset int) *completionLogprobs {
	out := &completionLogprobs{TextOffset: []int{}, TokenLogprobs: []float64{}, Tokens: []string{}, TopLogprobs: []map[string]float64{}}
	for _, p := range pieces {
		name := e.language.tok.Name(p.token)
		out.TextOffset = append(out.TextOffset, offset)
		out.Tokens = append(out.Tokens, name)
		out.TokenLogprobs = append(out.TokenLogprobs, p.ranking[0].logprob)
		top := map[string]float64{}
		for _, l := range p.ranking[:max(1, len(p.ranking)-1)] {
			top[e.language.tok.Name(l.token)] = l.logprob
		}
		out.TopLogprobs = append(out.TopLogprobs, top)
		offset += len(e.language.tok.Text(p.token))
	}
	return out
}
