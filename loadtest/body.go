package loadtest

import (
	"encoding/json"
	"strings"
)

// requestBody is the JSON of both endpoints.
type requestBody struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages,omitempty"` // chat
	Prompt        string         `json:"prompt,omitempty"`   // completions
	MaxTokens     int            `json:"max_tokens"`
	Temperature   float64        `json:"temperature"`
	IgnoreEOS     bool           `json:"ignore_eos,omitempty"` // vLLM's and SGLang's extension
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"` // vLLM refuses it without stream
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// writeBody returns the body that asks the last of messages.
func (c Config) writeBody(model string, messages []message, outputTokens int) ([]byte, error) {
	body := requestBody{
		Model:     model,
		MaxTokens: outputTokens,
		IgnoreEOS: c.IgnoreEOS,
		Stream:    c.Stream,
	}
	if c.Stream {
		body.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if c.Endpoint == Completions {
		body.Prompt = flatten(messages)
	} else {
		body.Messages = messages
	}
	return json.Marshal(body)
}

// flatten writes a chat history as one text. Each turn's text begins with the
// whole text and answer of the turn before, byte by byte, so that prefixes are
// shared as they are in a chat.
func flatten(history []message) string {
	var text strings.Builder
	for i, m := range history {
		if i > 0 && m.Role == "user" {
			text.WriteByte('\n')
		}
		text.WriteString(m.Content)
	}
	return text.String()
}
