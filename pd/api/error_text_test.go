package api

import (
	"testing"

	"github.com/tidwall/gjson"
)

// Clients of the Messages API shorten their conversation, or ask for a shorter answer, where they find Anthropic's words.
func TestErrorBody_AnthropicsWordsForTheContext(t *testing.T) {
	const tooLong = "prompt is too long: 9000 tokens > 8192 maximum"
	const tooMuch = "input length and `max_tokens` exceed context limit: 8000 + 512 > 8192, decrease input length or `max_tokens` and try again"
	for said, want := range map[string]string{
		"This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens. Please reduce the length of the input messages.":                                                                                     tooLong,
		"This model's maximum context length is 8192 tokens. However, your prompt has 9000. Please shorten it.":                                                                                                                                tooLong,
		"This model's maximum context length is 8192 tokens. However, you requested 512 output tokens and your prompt contains at least 9000 input tokens, for a total of at least 9512 tokens. Please reduce the length of the input prompt.": tooLong,
		"This model's maximum context length is 8192 tokens. However, you requested 512 output tokens and your prompt contains 8000 input tokens, for a total of 8512 tokens. Please reduce the length of the input prompt.":                   tooMuch,
		"This model's maximum context length is 8192 tokens. However, you requested 8512 tokens (8000 in the messages, 512 in the completion). Please reduce the length of the messages or completion.":                                        tooMuch,
		"This model's maximum context length is 8192 tokens. However, you requested 8512 tokens (8000 in the prompt, 512 in the completion). Please reduce the length of the prompt or completion.":                                            tooMuch,
		"'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 8192 tokens and your request has 8000 input tokens (512 > 8192 - 8000).":                                                            tooMuch,
		"The input (9000 tokens) is longer than the model's context length (8192 tokens).":                                                                                                                                                     tooLong,
		"Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 8512 tokens: 8000 tokens from the input messages and 512 tokens for the completion. Please reduce the number of tokens.":    tooMuch,
		"max_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer output tokens.":                                                                                                                                       "max_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer output tokens.",
	} {
		e := ErrorText{Status: 400, Message: said}
		if got := gjson.GetBytes(Messages.ErrorBody(e), "error.message").Str; got != want {
			t.Errorf("%s\n%s, want\n%s", said, got, want)
		}
		if got := gjson.GetBytes(Chat.ErrorBody(e), "error.message").Str; got != said {
			t.Errorf("on another API: %s", got)
		}
	}
}
