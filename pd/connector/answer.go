package connector

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// vLLM's bidirectional_kv_xfer, as read in 0.33 (nixl/pull_scheduler.py, nixl/pull_worker.py and
// the example disagg_proxy_multiturn.py). Decode's answer has a hand-off of its own that says
// do_remote_decode. In the prefill leg of the next turn, in place of the empty fields, it makes
// prefill read min(remote_num_tokens, tokens of the prompt) tokens, less what it has in its own
// cache, from the end of remote_block_ids. Nothing compares tokens; the first read frees the
// blocks; and an engine without the setting counts the tokens as coming and fetches nothing, for
// ever.

// AnswerKV is the KV of an earlier answer that prefill reads before it computes.
type AnswerKV struct {
	Handoff []byte   // as decode's answer had it
	IDs     []uint32 // of the whole prompt, of which Tokens were compared
	Tokens  int      // to read, in whole blocks
	Block   int      // tokens of a block
}

// KeepsAnswers reports whether a server may keep the KV of answers, and read that of others:
// vLLM with NIXL that takes prompts by ids (0.32).
func KeepsAnswers(s *pools.Server) bool { return MaySayFirst(s) }

// TakesIDs reports whether a request's prompt may be given to such a server by ids, which is how it
// is certain that they are those that were compared.
func (r Request) TakesIDs() bool {
	if _, list := r.Body.Get("prompt").Array(); list && r.Dialect == api.Completions {
		return r.Body.Get("echo").Null() // its ids
	}
	return r.mayShareIDs()
}

// AnswerBlocks is what decode's answer says of the KV that it keeps: how many blocks with how many
// tokens, and the host that has them. false: it is not such that a prefill can read a part of it.
func AnswerBlocks(handoff []byte) (blocks HandedBlocks, hosts []string, ok bool) {
	params, _ := api.Value(handoff).Object()
	if keeps, _ := params.Get("do_remote_decode").Bool(); !keeps {
		return HandedBlocks{}, nil, false
	}
	for _, field := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		if params.Get(field).Null() {
			return HandedBlocks{}, nil, false
		}
	}
	blocks = wholeBlocks(params)
	return blocks, hostsIn(params.Get("remote_host")), blocks.Blocks > 0
}

// params are the transfer parameters of a prefill leg that reads an answer's KV: as they came,
// cut to the blocks that the prompt goes on behind. More of them would be read from the wrong end.
func (a *AnswerKV) params(d *api.Dialect) api.Body {
	object, _ := api.Value(a.Handoff).Object()
	ids, _ := api.IDList(api.Value(gjson.GetBytes(a.Handoff, "remote_block_ids.0").Raw))
	object = object.With(
		api.Set("do_remote_decode", []byte("true")), api.Set("do_remote_prefill", []byte("false")),
		api.Set("remote_block_ids", append(append([]byte("[["), leadingIDs(ids, a.Tokens/a.Block)...), "]]"...)),
		api.Set("remote_num_tokens", number(a.Tokens)),
	)
	if d == api.Chat {
		object = object.With(api.Set("prompt_token_ids", idList(a.IDs)))
	}
	return object
}

// leadingIDs are the first n of ids that commas part.
func leadingIDs(ids []byte, n int) []byte {
	for i, c := range ids {
		if c == ',' {
			if n--; n == 0 {
				return ids[:i]
			}
		}
	}
	return ids
}

// idList is ids as a JSON list.
func idList(ids []uint32) []byte {
	list := append(make([]byte, 0, 7*len(ids)+2), '[')
	for i, id := range ids {
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendUint(list, uint64(id), 10)
	}
	return append(list, ']')
}

// DropAnswer gives an attempt up that was to read an answer's KV: the next one, under a name of its
// own, computes the prompt.
func (t *Transfer) DropAnswer() {
	t.Answer, t.ID = nil, AttemptID()
}
