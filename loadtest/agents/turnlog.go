package agents

import (
	"encoding/csv"
	"fmt"
	"io"
	"time"
)

// turnColumns are those of the turn log, one line a turn. Times are milliseconds of the engines.
// What is predicted is what the gateway reckoned with when it chose; gateway_ms is from the
// request's arrival there until its servers were chosen.
var turnColumns = []string{
	"api", "servers", "cache", "policy", "seed", "sent_ms", "session", "sub_agent", "turn", "prefill", "decode",
	"prompt_tokens", "cached_tokens", "predicted_cached_tokens", "known_tokens", "unknown",
	"gateway_ms", "predicted_queue_ms", "predicted_prefill_ms", "predicted_transfer_ms", "predicted_first_ms",
	"prefill_ms", "transfer_ms", "first_ms", "ttft_ms",
}

// logTurns writes a line for each turn that the gateway remembers: where its time went, and what
// was predicted of it.
func logTurns(what *round, log []*turn, speed float64, to *csv.Writer) error {
	for _, t := range log {
		a := t.decision.last()
		if a == nil {
			continue
		}
		if err := to.Write(t.columns(what, log[0].sent, a, speed)); err != nil {
			return err
		}
	}
	to.Flush()
	return to.Error()
}

// columns are a turn's, of turnColumns. Its last attempt counts.
func (t *turn) columns(what *round, began time.Time, a *attempt, speed float64) []string {
	chosen, of := a.chosen(), t.request.conversation
	ms := func(scaled float64) string { return fmt.Sprintf("%.1f", speed*scaled) }
	since := func(d time.Duration) string { return ms(float64(d.Microseconds()) / 1000) }
	return []string{
		what.API, fmt.Sprint(what.Servers), what.Cache, what.Policy, fmt.Sprint(what.seed), since(t.sent.Sub(began)), fmt.Sprint(of.session), fmt.Sprint(of.parent != nil), fmt.Sprint(t.request.turn), chosen.Prefill, chosen.Decode,
		fmt.Sprint(t.usage.prompt), fmt.Sprint(t.usage.cached), fmt.Sprint(chosen.cached()), fmt.Sprint(a.Tokens.Known), a.Tokens.Unknown,
		ms(a.Waited), ms(chosen.Queue), ms(chosen.Compute), ms(chosen.Transfer), ms(chosen.First),
		ms(a.Measured.Prefill), ms(a.Measured.Transfer), ms(a.Measured.First), since(t.ttft),
	}
}

// newTurnLog begins a turn log.
func newTurnLog(to io.Writer) (*csv.Writer, error) {
	log := csv.NewWriter(to)
	return log, log.Write(turnColumns)
}
