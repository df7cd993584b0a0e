package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// chat is /v1/chat/completions, with what was thought in between as vLLM takes it back
// (renderers/chat_utils.py, 0.32: `reasoning` of an assistant's message).
var chat = &api{
	name: "chat", path: "/v1/chat/completions",
	head: func(model string, w *workload) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"model":%q,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"tools":[`, model)
		for i, t := range w.tools {
			comma(&b, i)
			fmt.Fprintf(&b, `{"type":"function","function":{"name":%q,"description":%s,"parameters":`+schema+`}}`, t.name, quoted(t.description), quoted(t.property))
		}
		fmt.Fprintf(&b, `],"messages":[{"role":"system","content":%s},{"role":"user","content":%s}`, quoted(w.system), quoted(reminder))
		return b.Bytes()
	},
	step: func(b *bytes.Buffer, s *step, _ bool) {
		switch {
		case s.call != nil:
			fmt.Fprintf(b, `,{"role":"assistant",%s"content":%s,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":%q,"arguments":%s}}]},{"role":"tool","tool_call_id":"call_%d","content":%s}`,
				s.reasoning(), quoted(s.says), s.number, s.call.tool, quoted(s.call.arguments()), s.number, quoted(s.call.result))
			return
		case s.says != "":
			fmt.Fprintf(b, `,{"role":"assistant",%s"content":%s}`, s.reasoning(), quoted(s.says))
		}
		fmt.Fprintf(b, `,{"role":"user","content":%s}`, quoted(s.asks))
	},
	tail: `],"max_tokens":%d}`,
	content: func(data []byte) bool {
		return bytes.Contains(data, []byte(`"content":"`)) && !bytes.Contains(data, []byte(`"content":""`))
	},
	usage: func(data []byte) (usage, bool) {
		if !bytes.Contains(data, []byte(`"usage":{`)) {
			return usage{}, false
		}
		var end struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		err := json.Unmarshal(data, &end)
		return usage{end.Usage.Prompt, end.Usage.Details.Cached}, err == nil
	},
}

// reasoning is the field of an assistant's message with what it thought, if anything.
func (s *step) reasoning() string {
	if s.thinking == "" {
		return ""
	}
	return `"reasoning":` + quoted(s.thinking) + `,`
}

func comma(b *bytes.Buffer, i int) {
	if i > 0 {
		b.WriteByte(',')
	}
}
