package proxybench

import (
	"bytes"
	"math"

	"github.com/tidwall/gjson"
)

// leg is what an engine reads of a request.
type leg struct {
	mark      mark
	marked    bool
	size      int // bytes of the body
	answer    int // tokens that are asked for
	stream    bool
	usage     bool // a stream ends with its usage
	ids       bool // token ids are asked for
	gap       int  // microseconds between the events of a stream; 0: none
	keeps     bool // NIXL: prefill keeps the blocks for a decode
	reads     bool // NIXL: decode reads the blocks that prefill kept
	name      string
	blocks    int
	behind    int         // NIXL: tokens of the prompt and of what prefill said, behind which decode goes on; 0: it begins
	prompt    *chatTokens // its tokens, where they are those of /tokenize; else nil
	bootstrap string      // SGLang: the room in which the legs meet; "": none
}

// promptTokens is how long the prompt is taken to be: by its text, or by its ids where it has those.
func (l *leg) promptTokens() int {
	if l.prompt != nil {
		return len(l.prompt.tokens)
	}
	if l.behind > 0 {
		return l.behind
	}
	return l.size/4 + 1
}

// blocksOf is how many blocks of KV a prompt fills.
func blocksOf(tokens int) int { return tokens/blockTokens + 1 }

// blockTokens is the size of a block of KV.
const blockTokens = 16

// readLeg reads a request. The long text of its prompt has no escapes: it is cut out before anything
// else is looked at, as the ids of the prompt are, which stand behind their key without a space: so reading costs about
// the same for every length. scratch is reused.
func readLeg(body, scratch []byte) (l leg, rest []byte) {
	text := valueOf(body, `"content":"`, '"')
	rest = append(append(scratch[:0], body[:text.from]...), body[text.to:]...)
	if ids := valueOf(rest, `"prompt_token_ids":[`, ']'); ids.to > ids.from {
		l.behind = bytes.Count(rest[ids.from:ids.to], []byte(",")) + 1
		rest = append(rest[:ids.from], rest[ids.to:]...)
	}
	l.mark, l.marked = findMark(rest)
	gjson.ParseBytes(rest).ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "max_tokens", "max_completion_tokens":
			if n := int(value.Int()); n > 0 {
				l.answer = n
			}
		case "stream":
			l.stream = value.Bool()
		case "stream_options":
			l.usage = value.Get("include_usage").Bool()
		case "return_token_ids":
			l.ids = value.Bool()
		case "temperature":
			l.gap = int(math.Round(1e6 * value.Float())) // some proxies pass it on in 32 bits
		case "bootstrap_room":
			l.bootstrap = value.String()
		case "kv_transfer_params":
			l.readTransfer(value)
		}
		return true
	})
	// What a proxy adds for its own ends does not make the prompt longer.
	l.size = text.to - text.from
	return l, rest
}

// span is a part of a body.
type span struct{ from, to int }

// valueOf is what stands between a beginning and the next end; empty, at the beginning of the body, if it is not there.
func valueOf(body []byte, begin string, end byte) span {
	at := bytes.Index(body, []byte(begin))
	if at < 0 {
		return span{}
	}
	from := at + len(begin)
	return span{from, from + max(0, bytes.IndexByte(body[from:], end))}
}

func (l *leg) readTransfer(params gjson.Result) {
	l.keeps, l.reads = params.Get("do_remote_decode").Bool(), params.Get("do_remote_prefill").Bool()
	l.name = params.Get("remote_request_id").Str
	if ids := params.Get("remote_block_ids").Raw; len(ids) > 4 {
		l.blocks = bytes.Count([]byte(ids), []byte(",")) + 1
	}
}
