package pd

import (
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pd/api"
)

// put is the message of an engine that has put a prompt's blocks of 16 tokens into a store.
func put(prompt []uint32) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1e9)
	b = msgp.AppendMapHeader(msgp.AppendArrayHeader(b, 1), 6)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(prompt)/16))
	for i := range len(prompt) / 16 {
		b = msgp.AppendUint64(b, uint64(i+1))
	}
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(len(prompt)))
	for _, token := range prompt {
		b = msgp.AppendUint32(b, token)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), 16)
	return msgp.AppendString(msgp.AppendString(b, "medium"), "cpu")
}

// What an engine did not find in a store is not believed to be there any more, where its usage says
// so of the request's own prompt.
func TestStore_UsageJudgesIt(t *testing.T) {
	none := api.Count{Known: true}
	for name, c := range map[string]struct {
		cached   api.Count
		change   func(*requestState)
		believed bool
	}{
		"nothing was found":     {none, func(*requestState) {}, false},
		"its stream is open":    {none, func(st *requestState) { st.client = st.req; st.dropText() }, false},
		"all was":               {api.Count{Known: true, Tokens: 160}, func(*requestState) {}, true},
		"usage does not say":    {api.Count{}, func(*requestState) {}, true},
		"it continues a stream": {none, func(st *requestState) { st.bind.continues = true }, true},
		"several samples":       {none, func(st *requestState) { st.req.Answers = 2 }, true},
		"none was claimed":      {none, func(st *requestState) { st.hits.held.Disk = 0 }, true},
	} {
		prompt := testPrompt(160)
		f := newTestFleet(t, 1, prompt)
		for _, server := range []string{"a", "b"} {
			source, err := f.Binder.Locality.Index.Open(kvstate.Spec{
				SourceID: kvstate.SourceID{Server: server}, Model: testModel, Store: "pool", BlockTokens: 16,
			})
			if err != nil {
				t.Fatal(err)
			}
			if server == "a" {
				source.ApplyLive(kvstate.Message{Payload: put(prompt)})
			}
		}
		st := f.arrives(prompt, time.Now())
		believed := func() int {
			f.Binder.Locality.match(st.bind.prefix)
			return st.bind.prefix.hits.Held("b").Disk
		}
		if n := believed(); n != 160 {
			t.Fatalf("b was believed to find %d tokens of what a has put there", n)
		}
		st.hits = hits{server: "b", held: st.bind.prefix.hits.Held("b")}
		c.change(st)
		f.Binder.judgeStore(st, c.cached)
		if n := believed(); (n == 160) != c.believed {
			t.Errorf("%s: %d tokens believed afterwards", name, n)
		}
	}
}
