package loadtest

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/tidwall/gjson"
)

// sampleTokens is the size of the text whose tokens the server is asked to count.
const sampleTokens = 4 * blockTokens

// A WordRate says how many words of generated text make one token of the model.
// The words are short and common: vocabularies of real models hold nearly all of
// them, with their leading space, as one token.
type WordRate struct {
	PerToken float64 `json:"per_token"`
	// Source is "given" by the caller, "measured" by the server's /tokenize, or
	// "assumed" to be one because the server did not count.
	Source string `json:"source"`
}

// wordRate returns the given rate, or, when that is 0, what the server counts in
// a sample. A server that cannot count is no failure: /tokenize is no part of
// OpenAI's API.
func (c *client) wordRate(ctx context.Context, model string, given float64) WordRate {
	if given > 0 {
		return WordRate{PerToken: given, Source: "given"}
	}
	counted, err := c.countTokens(ctx, model, string(newPassage(0, sampleTokens).appendText(nil, 1)))
	if err != nil || counted == 0 {
		return WordRate{PerToken: 1, Source: "assumed"}
	}
	return WordRate{PerToken: sampleTokens / float64(counted), Source: "measured"}
}

// countTokens asks vLLM's POST /tokenize how many tokens text has.
func (c *client) countTokens(ctx context.Context, model, text string) (int, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": text, "add_special_tokens": false})
	if err != nil {
		return 0, err
	}
	answer, err := c.inquire(ctx, http.MethodPost, "/tokenize", body)
	if err != nil {
		return 0, err
	}
	return int(gjson.GetBytes(answer, "count").Int()), nil
}
