package pd

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// BenchmarkFirstToken: from the bytes of prefill's answer to a stream's first event and to what decode is asked for. The
// client's first token waits for it. Budget (2-core VM): 60 us for a prompt of 1,000 tokens, and 0.5 ms for one of 55,000,
// whose ids are 300 KB. They are known by their names, as those of a prompt are that another stream has.
func BenchmarkFirstToken(b *testing.B) {
	for _, prompt := range []int{1000, 55_000} {
		for _, dialect := range []*api.Dialect{api.Chat, api.Completions} {
			b.Run(fmt.Sprintf("%s of %d tokens", dialect.Name, prompt), func(b *testing.B) {
				f := newTestFleet(b, 1, testPrompt(100))
				st, bound := f.bound(b, false)
				raw := `{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
				if dialect == api.Completions {
					raw = `{"model":"m","max_tokens":5,"stream":true,"prompt":"hi"}`
				}
				body, err := api.ParseBody([]byte(raw))
				if err != nil {
					b.Fatal(err)
				}
				st.client.Body, st.client.Dialect, st.client.Stream, st.client.MaxOutput, st.client.MaxField = body, dialect, true, 5, "max_tokens"
				st.req.Dialect = dialect
				said := prefillSays(dialect, prompt+1)
				b.SetBytes(int64(len(said)))
				b.ReportAllocs()
				for b.Loop() {
					bound.first = firsttoken.Case{Setting: firsttoken.FromPrefill, Dialect: dialect, Proved: true, BlockTokens: 16, Bounded: true}
					tr := st.transfer(bound)
					tr.First = connector.First{Wanted: true, Seed: 7}
					h := tr.Handoff()
					read := transcript.Prompt{}
					answer, err := dialect.ReadAnswerAndPrompt(said, &read)
					if err != nil {
						b.Fatal(err)
					}
					h.RecordPrefill(tr, answer, time.Now())
					firstTokens{f.Orchestrator}.use(st, bound, tr, h, firstSaid{prompt: &read})
					if !h.GoesOn() {
						b.Fatal(bound.choice.FirstToken)
					}
				}
			})
		}
	}
}

// prefillSays is vLLM's answer of one token to a prompt of so many.
func prefillSays(d *api.Dialect, prompt int) []byte {
	ids := []byte{'['}
	for i := range prompt {
		ids = append(strconv.AppendInt(ids, int64(i*7919%150_000), 10), ',')
	}
	ids[len(ids)-1] = ']'
	blocks := []byte{'['}
	for i := range (prompt + 15) / 16 {
		blocks = append(strconv.AppendInt(blocks, int64(i), 10), ',')
	}
	blocks[len(blocks)-1] = ']'
	ofChat, ofText, said := fmt.Sprintf(`,"prompt_token_ids":%s`, ids), "", `"message":{"role":"assistant","content":"He"}`
	if d == api.Completions {
		ofChat, ofText, said = "", fmt.Sprintf(`,"prompt_token_ids":%s`, ids), `"text":"He"`
	}
	return fmt.Appendf(nil, `{"id":"x","created":1,"model":"m","choices":[{"index":0,%s,"logprobs":null,"finish_reason":"length","token_ids":[5]%s}]%s,`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d},"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[%s],"remote_num_tokens":%d}}`,
		said, ofText, ofChat, prompt, prompt+1, blocks, prompt)
}
