package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// A prompt one token shorter than PairPaysFrom says is decoded alone, one as long has a pair.
func TestPairPaysFrom_IsWhereTheChoiceTurns(t *testing.T) {
	f := newTestFleet(t, 4, testPrompt(64))
	const answer = 300
	from, ok := f.Binder.PairPaysFrom(testModel, answer)
	if !ok || from <= 1 {
		t.Fatalf("a pair pays from %d tokens on, %v", from, ok)
	}
	for tokens, want := range map[int]bool{from - 1: false, from: true, 4 * from: true} {
		r := &bindRequest{base: testModel, arrived: time.Now(), req: &Request{Model: testModel, Dialect: api.Chat, PromptTokens: tokens, OutputTokens: answer}}
		bound, err := f.Binder.bindNow(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := bound.prefill != nil; got != want {
			t.Errorf("with %d tokens a pair is %v, from %d tokens on it pays", tokens, got, from)
		}
		bound.release()
	}
	if _, ok := f.Binder.PairPaysFrom("nobody", answer); ok {
		t.Error("a model that no server serves has a length from which a pair pays")
	}
}

// Work that is under way moves where the choice turns, not what PairPaysFrom says: the demo says
// it while its first requests run.
func TestPairPaysFrom_IsTheSameUnderLoad(t *testing.T) {
	f := newTestFleet(t, 4, testPrompt(64))
	const answer = 300
	want, _ := f.Binder.PairPaysFrom(testModel, answer)
	f.occupy(t, testModel, time.Hour)
	if got, ok := f.Binder.PairPaysFrom(testModel, answer); !ok || got != want {
		t.Errorf("a pair pays from %d tokens on, %v; while servers are idle from %d on", got, ok, want)
	}
}
