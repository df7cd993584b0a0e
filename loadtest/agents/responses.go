package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// responses is /v1/responses, with the whole conversation in each request, as agents send it
// that let servers keep nothing.
var responses = &api{
	name: "responses", path: "/v1/responses",
	head: func(model string, w *workload) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"model":%q,"stream":true,"ignore_eos":true,"store":false,"parallel_tool_calls":true,"include":["reasoning.encrypted_content"],"tools":[`, model)
		for i, t := range w.tools {
			comma(&b, i)
			fmt.Fprintf(&b, `{"type":"function","name":%q,"description":%s,"strict":false,"parameters":`+schema+`}`, t.name, quoted(t.description), quoted(t.property))
		}
		fmt.Fprintf(&b, `],"instructions":%s,"input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":%s}]}`, quoted(w.system), quoted(reminder))
		return b.Bytes()
	},
	step: func(b *bytes.Buffer, s *step, _ bool) {
		if s.thinking != "" {
			fmt.Fprintf(b, `,{"type":"reasoning","id":"rs_%d","summary":[],"content":[{"type":"reasoning_text","text":%s}]}`, s.number, quoted(s.thinking))
		}
		if s.says != "" {
			fmt.Fprintf(b, `,{"type":"message","id":"msg_%d","role":"assistant","status":"completed","content":[{"type":"output_text","text":%s,"annotations":[]}]}`, s.number, quoted(s.says))
		}
		if s.call != nil {
			fmt.Fprintf(b, `,{"type":"function_call","id":"fc_%d","call_id":"call_%d","name":%q,"arguments":%s,"status":"completed"},{"type":"function_call_output","call_id":"call_%d","output":%s}`,
				s.number, s.number, s.call.tool, quoted(s.call.arguments()), s.number, quoted(s.call.result))
			return
		}
		fmt.Fprintf(b, `,{"type":"message","role":"user","content":[{"type":"input_text","text":%s}]}`, quoted(s.asks))
	},
	tail: `],"max_output_tokens":%d}`,
	content: func(data []byte) bool {
		return bytes.Contains(data, []byte(`"type":"response.output_text.delta"`)) || bytes.Contains(data, []byte(`"type":"response.reasoning_text.delta"`))
	},
	usage: func(data []byte) (usage, bool) {
		if !bytes.Contains(data, []byte(`"type":"response.completed"`)) && !bytes.Contains(data, []byte(`"type":"response.incomplete"`)) {
			return usage{}, false
		}
		var end struct {
			Response struct {
				Usage struct {
					Input   int `json:"input_tokens"`
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"input_tokens_details"`
				} `json:"usage"`
			} `json:"response"`
		}
		err := json.Unmarshal(data, &end)
		return usage{end.Response.Usage.Input, end.Response.Usage.Details.Cached}, err == nil
	},
}
