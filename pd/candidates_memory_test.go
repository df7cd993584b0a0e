package pd

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
)

// An open stream holds the servers that serve it, and not all from which they were chosen: of a thousand servers that
// is megabytes. Those are in what is remembered of its decision, and stay there when the stream is continued.
func TestRun_AnOpenStreamHoldsNoServerThatWasNotChosen(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
	for _, e := range f.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultErrorAfterTokens, Tokens: 5, Count: 1})
	}
	answer, err := f.Run(t.Context(), f.asks(api.Chat, streamed))
	if err != nil {
		t.Fatal(err)
	}
	candidates := f.rememberedCandidates()
	got := readToEnd(answer)
	if n := f.metric("tandem_continuations_total", "outcome", "continued"); got.err != nil || n == 0 {
		t.Fatalf("continued %v times: %v", n, got.err)
	}
	if last := f.rememberedCandidates(); len(last) != len(candidates) || len(last) != 2 {
		t.Errorf("of the first attempt %d prefill servers are remembered, and of the stream that goes on %d", len(candidates), len(last))
	}

	answer, err = f.Run(t.Context(), f.asks(api.Chat, streamed))
	if err != nil {
		t.Fatal(err)
	}
	held := weak.Make(&f.rememberedCandidates()[0])
	f.Decisions = decision.NewRecords(time.Hour, 1<<20) // what is remembered is forgotten
	f.eventually("the servers are forgotten while the stream is open", func() bool {
		runtime.GC()
		return held.Value() == nil
	})
	readToEnd(answer)
	f.nothingIsLeft()
}

func (f *engineFleet) rememberedCandidates() []cost.Candidate {
	d, _ := f.Decisions.Find("r")
	return d.Choices[0].Candidates.Prefill
}

// Requests whose answers have not begun hold no more of such servers than decisions may take together.
func TestRun_AnswersUnderWayHoldServersWithinABound(t *testing.T) {
	for bytes, want := range map[int]int{1 << 20: 2, 1: 1} {
		f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2, orchestrator: func(o *Orchestrator) { o.Decisions = decision.NewRecords(time.Hour, bytes) }})
		f.served(f.asks(api.Chat, ""))
		if got := len(f.rememberedCandidates()); got != want {
			t.Errorf("of two prefill servers a request held %d in %d bytes, want %d", got, bytes, want)
		}
		f.nothingIsLeft()
	}
}
