package proxybench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The answers of engines: vLLM's shape (vllm/entrypoints/openai/chat_completion/protocol.py), with the
// mark of the request as its id and as the first word of the answer.

// mostIDs is the largest list of token or block ids that is written.
const mostIDs = 128 << 10

// idList is "1000,1001,...", and idEnds where each of its numbers ends.
var idList, idEnds = func() (string, []int) {
	var b strings.Builder
	ends := make([]int, mostIDs)
	for i := range ends {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(1000 + i))
		ends[i] = b.Len()
	}
	return b.String(), ends
}()

// ids are so many ids.
func ids(n int) string {
	if n == 0 {
		return ""
	}
	return idList[:idEnds[min(n, mostIDs)-1]]
}

func appendHead(b []byte, status, kind string, length int) []byte {
	return fmt.Appendf(b, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, kind, length)
}

// appendChunk appends what write appends as one chunk of HTTP/1.1.
func appendChunk(b []byte, write func([]byte) []byte) []byte {
	const size = "0000\r\n"
	from := len(b)
	b = write(append(b, size...))
	n := len(b) - from - len(size)
	digits := 4
	if n > 0xffff { // it does not fit them
		digits = 8
		b = append(b, size[:4]...)
		copy(b[from+digits:], b[from+4:])
	}
	for i := range digits {
		b[from+i] = "0123456789abcdef"[n>>(4*(digits-1-i))&15]
	}
	return append(b, "\r\n"...)
}

func appendWhole(b []byte, l *leg, handoff string) []byte {
	b = append(append(append(b, `{"id":"chatcmpl-`...), l.mark[:]...), `","object":"chat.completion","created":1760000000,"model":"`+model+`","choices":[{"index":0,"message":{"role":"assistant","content":"`...)
	for i := range l.answer {
		b = appendToken(b, l, i)
	}
	b = append(b, `","refusal":null,"annotations":null,"tool_calls":[]},"logprobs":null,"finish_reason":"length","stop_reason":null`...)
	if l.ids {
		b = append(append(append(b, `,"token_ids":[`...), ids(l.answer)...), ']')
	}
	b = append(b, `}],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = appendUsageObject(b, l)
	if l.ids {
		b = appendPromptIDs(b, l)
	}
	if handoff == "" {
		return append(b, `,"kv_transfer_params":null}`...)
	}
	b = append(b, `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[`...)
	b = append(append(b, ids(blocksOf(l.promptTokens()))...), `]],"remote_engine_id":"5a2b7c1e-prefill","remote_request_id":"`...)
	return append(append(b, handoff...), `","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":`+strconv.Itoa(l.promptTokens())+`}}`...)
}

// appendPromptIDs appends the ids of the prompt: its tokens where there are some, else as many ids.
func appendPromptIDs(b []byte, l *leg) []byte {
	b = append(b, `,"prompt_token_ids":[`...)
	if l.prompt == nil {
		list := ids(l.promptTokens())
		return append(append(slices.Grow(b, 3*len(list)/2), list...), ']') // other ids come behind them
	}
	return append(l.prompt.appendIDs(b), ']')
}

// appendToken appends the text of a token: the mark at the beginning of an answer, which prefill has said where decode
// goes on behind it.
func appendToken(b []byte, l *leg, i int) []byte {
	if i == 0 && l.behind == 0 {
		return append(b, l.mark[:]...)
	}
	return append(append(b, ' '), words[i%len(words)]...)
}

func appendUsageObject(b []byte, l *leg) []byte {
	return fmt.Appendf(b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}`,
		l.promptTokens(), l.promptTokens()+l.answer, l.answer)
}

// beginEvent appends what all events of a stream begin with.
func beginEvent(b []byte, l *leg) []byte {
	b = append(append(b, `data: {"id":"chatcmpl-`...), l.mark[:]...)
	return append(b, `","object":"chat.completion.chunk","created":1760000000,"model":"`+model+`","choices":[`...)
}

// appendRole appends the event that opens a stream.
func appendRole(b []byte, l *leg) []byte {
	b = append(beginEvent(b, l), `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if l.ids {
		b = appendPromptIDs(b, l)
	}
	return append(b, "}\n\n"...)
}

// appendEvent appends one token, the last with the reason why it is the last.
func appendEvent(b []byte, l *leg, i int) []byte {
	b = append(beginEvent(b, l), `{"index":0,"delta":{"content":"`...)
	b = append(appendToken(b, l, i), `"},"logprobs":null,"finish_reason":`...)
	if i == l.answer-1 {
		b = append(b, `"length"`...)
	} else {
		b = append(b, `null`...)
	}
	b = append(b, `,"stop_reason":null`...)
	if l.ids {
		b = append(strconv.AppendInt(append(b, `,"token_ids":[`...), int64(1000+i), 10), ']')
	}
	return append(b, "}]}\n\n"...)
}

// appendUsage appends the event with the usage of a stream.
func appendUsage(b []byte, l *leg) []byte {
	return append(appendUsageObject(append(beginEvent(b, l), `],"usage":`...), l), "}\n\n"...)
}
