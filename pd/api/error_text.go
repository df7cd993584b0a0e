package api

import (
	"bytes"
	"encoding/json"
)

// ErrorText is what an error answer says to the client.
type ErrorText struct {
	Status  int
	Type    string // OpenAI's type, such as invalid_request_error
	Code    string // empty is null
	Param   string // empty is null
	Message string
	Request string // its id, which Anthropic's errors repeat; empty is unknown
}

// ErrorBody returns the whole body of an error answer.
func (d *Dialect) ErrorBody(e ErrorText) []byte { return d.errorBody(e) }

// ErrorEvent returns the SSE event that ends a stream which broke. A clean end
// would pass for success in every SDK.
func (d *Dialect) ErrorEvent(e ErrorText) []byte { return d.errorEvent(e) }

func openAIError(e ErrorText) []byte {
	return encode(map[string]any{"error": openAIErrorObject(e)})
}

func openAIErrorObject(e ErrorText) map[string]any {
	return map[string]any{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)}
}

func openAIErrorEvent(e ErrorText) []byte {
	return dataEvent("", encode(map[string]any{"error": openAIErrorObject(e)}))
}

// responsesErrorEvent is the Responses API's own error event.
func responsesErrorEvent(e ErrorText) []byte {
	return dataEvent("error", encode(map[string]any{
		"type": "error", "code": orNull(e.Code), "message": e.Message, "param": orNull(e.Param),
	}))
}

func anthropicError(e ErrorText) []byte {
	body := map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(e.Status), "message": e.Message}}
	if e.Request != "" {
		body["request_id"] = e.Request
	}
	return encode(body)
}

func anthropicErrorEvent(e ErrorText) []byte { return dataEvent("error", anthropicError(e)) }

// anthropicType is the type that the Messages API gives to a status.
func anthropicType(status int) string {
	switch status {
	case 400, 405, 415, 422:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	}
	return "api_error"
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func encode(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // maps of strings always encode
	return bytes.TrimSpace(buf.Bytes())
}

func dataEvent(name string, data []byte) []byte {
	var out []byte
	if name != "" {
		out = append(out, "event: "+name+"\n"...)
	}
	out = append(out, "data: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}
