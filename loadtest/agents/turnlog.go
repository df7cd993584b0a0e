package agents

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// turnColumns are those of the turn log, one line a turn. Times are milliseconds of the engines.
// What is predicted is what the gateway reckoned with when it chose; gateway_ms is from the
// request's arrival there until its servers were chosen.
var turnColumns = []string{
	"api", "servers", "cache", "policy", "sent_ms", "session", "sub_agent", "turn", "prefill", "decode",
	"prompt_tokens", "cached_tokens", "predicted_cached_tokens", "known_tokens", "unknown",
	"gateway_ms", "predicted_queue_ms", "predicted_prefill_ms", "predicted_transfer_ms", "predicted_first_ms",
	"prefill_ms", "transfer_ms", "first_ms", "ttft_ms",
}

// decision is what the gateway remembers of a request (gateway/admin.go), as far as the log says it.
type decision struct {
	Attempts []attempt `json:"attempts"`
}

type attempt struct {
	Waited float64 `json:"waited_ms"`
	Tokens struct {
		Known   int    `json:"known"`
		Unknown string `json:"unknown"`
	} `json:"tokens"`
	Measured struct {
		Prefill  float64 `json:"prefill_ms"`
		Transfer float64 `json:"transfer_ms"`
		First    float64 `json:"first_token_ms"`
	} `json:"measured"`
	Alternatives []alternative `json:"alternatives"`
}

type alternative struct {
	Prefill       string  `json:"prefill"`
	Decode        string  `json:"decode"`
	Chosen        bool    `json:"chosen"`
	First         float64 `json:"first_token_ms"`
	Queue         float64 `json:"queue_ms"`
	Compute       float64 `json:"prefill_ms"`
	Transfer      float64 `json:"transfer_ms"`
	PrefillCached int     `json:"prefill_cached"`
	DecodeCached  int     `json:"decode_cached"`
}

// chosen is the alternative that was taken; its zero value where that is not remembered.
func (a *attempt) chosen() alternative {
	if i := slices.IndexFunc(a.Alternatives, func(x alternative) bool { return x.Chosen }); i >= 0 {
		return a.Alternatives[i]
	}
	return alternative{}
}

// logTurns writes a line for each turn that the gateway remembers: where its time went, and what
// was predicted of it.
func (c *cluster) logTurns(ctx context.Context, what *run, log []*turn, speed float64, to *csv.Writer) error {
	for _, t := range log {
		text, err := process.Ask(ctx, http.MethodGet, "http://"+c.admin+"/debug/decisions/"+t.id, nil)
		var d decision
		if err != nil || json.Unmarshal(text, &d) != nil || len(d.Attempts) == 0 {
			continue
		}
		if err := to.Write(t.columns(what, log[0].sent, &d.Attempts[len(d.Attempts)-1], speed)); err != nil {
			return err
		}
	}
	to.Flush()
	return to.Error()
}

// columns are a turn's, of turnColumns. Its last attempt counts.
func (t *turn) columns(what *run, began time.Time, a *attempt, speed float64) []string {
	chosen, of := a.chosen(), t.request.conversation
	cached := chosen.PrefillCached
	if chosen.Prefill == "" {
		cached = chosen.DecodeCached
	}
	ms := func(scaled float64) string { return fmt.Sprintf("%.1f", speed*scaled) }
	since := func(d time.Duration) string { return ms(float64(d.Microseconds()) / 1000) }
	return []string{
		what.API, fmt.Sprint(what.Servers), what.Cache, what.Policy, since(t.sent.Sub(began)), fmt.Sprint(of.session), fmt.Sprint(of.parent != nil), fmt.Sprint(t.request.turn), chosen.Prefill, chosen.Decode,
		fmt.Sprint(t.usage.prompt), fmt.Sprint(t.usage.cached), fmt.Sprint(cached), fmt.Sprint(a.Tokens.Known), a.Tokens.Unknown,
		ms(a.Waited), ms(chosen.Queue), ms(chosen.Compute), ms(chosen.Transfer), ms(chosen.First),
		ms(a.Measured.Prefill), ms(a.Measured.Transfer), ms(a.Measured.First), since(t.ttft),
	}
}

// newTurnLog begins a turn log.
func newTurnLog(to io.Writer) (*csv.Writer, error) {
	log := csv.NewWriter(to)
	return log, log.Write(turnColumns)
}
