package pd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

func TestOutgrows(t *testing.T) {
	for _, c := range []struct {
		decode, prefill, block int
		want                   bool
	}{
		{100, 100, 16, false},
		{112, 100, 16, true}, // one full block more
		{113, 112, 16, true}, // one more, if the last one counts too
		{97, 96, 16, true},
		{111, 110, 16, false},
		{90, 200, 16, false}, // shorter is wrong too, but ends no engine
		{112, 0, 16, false},
		{0, 100, 16, false},
		{112, 100, 0, false},
	} {
		if got := hasMoreBlocks(c.decode, c.prefill, c.block); got != c.want {
			t.Errorf("%d tokens against %d in blocks of %d: %v", c.decode, c.prefill, c.block, got)
		}
	}
}

// What the gateway knows of a prompt keeps a hand-off from an engine that it would end.
func TestOutgrown_IsNotHandedOver(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(320))
	f.await(t, func() bool {
		return !slices.ContainsFunc(f.Fleet.Servers(), func(s *pools.Server) bool { return s.Identity().BlockTokens != "16" })
	})
	withheld := 0.0
	for prefill, want := range map[int]bool{160: false, 159: true, 150: true} {
		now := time.Now()
		st := f.arrives(testPrompt(160), now)
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		tr := st.transfer(b)
		b.handoff = tr.Handoff()
		answer := fmt.Sprintf(`{"usage":{"prompt_tokens":%d},"kv_transfer_params":{"remote_block_ids":[[1]]}}`, prefill)
		b.handoff.RecordPrefill(tr, answered(t, answer), now)
		failed := f.checkLength(st, b, tr)
		if (failed != nil) != want || failed != nil && (failed.lostConnection() || !st.retryWithoutBudget) {
			t.Errorf("%d tokens on prefill, 160 on decode: %v", prefill, failed)
		}
		if want {
			withheld++
		}
		if got := f.strandedOn(b.handoff.From); got != withheld {
			t.Errorf("%d tokens on prefill: %v hand-offs count as stranded, want %v", prefill, got, withheld)
		}
		b.release()
	}
}

// The engine cuts such prompts otherwise on a leg whose answer is bounded, so they have
// but one.
func TestTruncatesByAnswer(t *testing.T) {
	for body, want := range map[string]bool{
		`{"truncate_prompt_tokens":-1}`: true, `{"truncate_prompt_tokens":0}`: false, `{"truncate_prompt_tokens":9}`: false, `{"truncate_prompt_tokens":null}`: false,
		`{"truncation":"auto"}`: true, `{"truncation":"disabled"}`: false, `{}`: false,
	} {
		parsed, _ := api.ParseBody([]byte(body))
		if got := truncatesByAnswer(&Request{Dialect: api.Responses, Body: parsed}); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}
