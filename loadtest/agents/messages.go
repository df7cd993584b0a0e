package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
)

const cacheMark = `,"cache_control":{"type":"ephemeral"}`

// messages is /v1/messages, with marks of what to cache at the system prompt and the last
// message, and what was thought in between.
var messages = &api{
	name: "messages", path: "/v1/messages",
	head: func(model string, w *workload) []byte {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"model":%q,"stream":true,"ignore_eos":true,"thinking":{"type":"adaptive"},"tools":[`, model)
		for i, t := range w.tools {
			comma(&b, i)
			fmt.Fprintf(&b, `{"name":%q,"description":%s,"input_schema":`+schema+`}`, t.name, quoted(t.description), quoted(t.property))
		}
		fmt.Fprintf(&b, `],"system":[{"type":"text","text":"You are an agent."},{"type":"text","text":%s%s}],"messages":[{"role":"user","content":[{"type":"text","text":%s}]}`,
			quoted(w.system), cacheMark, quoted(reminder))
		return b.Bytes()
	},
	step: func(b *bytes.Buffer, s *step, last bool) {
		mark := ""
		if last {
			mark = cacheMark
		}
		if s.says != "" {
			b.WriteString(`,{"role":"assistant","content":[`)
			if s.thinking != "" {
				fmt.Fprintf(b, `{"type":"thinking","thinking":%s,"signature":"c2ln"},`, quoted(s.thinking))
			}
			fmt.Fprintf(b, `{"type":"text","text":%s}`, quoted(s.says))
			if s.call != nil {
				fmt.Fprintf(b, `,{"type":"tool_use","id":"toolu_%d","name":%q,"input":%s}`, s.number, s.call.tool, s.call.arguments())
			}
			b.WriteString(`]}`)
		}
		if s.call != nil {
			fmt.Fprintf(b, `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_%d","content":[{"type":"text","text":%s}]%s}]}`, s.number, quoted(s.call.result), mark)
			return
		}
		fmt.Fprintf(b, `,{"role":"user","content":[{"type":"text","text":%s%s}]}`, quoted(s.asks), mark)
	},
	tail: `],"max_tokens":%d}`,
	content: func(data []byte) bool {
		return bytes.Contains(data, []byte(`"type":"content_block_delta"`))
	},
	usage: func(data []byte) (usage, bool) {
		if !bytes.Contains(data, []byte(`"type":"message_delta"`)) {
			return usage{}, false
		}
		var end struct {
			Usage struct {
				Input   int `json:"input_tokens"`
				Cached  int `json:"cache_read_input_tokens"`
				Created int `json:"cache_creation_input_tokens"`
			} `json:"usage"`
		}
		err := json.Unmarshal(data, &end)
		u := &end.Usage
		return usage{u.Input + u.Cached + u.Created, u.Cached}, err == nil
	},
}
