package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// decision is what the gateway remembers of a request (gateway/admin.go), as far as it is used here.
type decision struct {
	text     []byte    // all of it, or why there is none
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

// cached is how much of the prompt the server that computes it is believed to have.
func (a *alternative) cached() int {
	if a.Prefill == "" {
		return a.DecodeCached
	}
	return a.PrefillCached
}

// last is the attempt that was answered, nil if none is remembered.
func (d *decision) last() *attempt {
	if len(d.Attempts) == 0 {
		return nil
	}
	return &d.Attempts[len(d.Attempts)-1]
}

// remember asks the gateway what it remembers of each turn. Of one that it has forgotten, its
// servers are taken to have been chosen when it was sent, and its prefill to have ended with its
// first token.
func (c *cluster) remember(ctx context.Context, log []*turn) {
	for _, t := range log {
		text, err := process.Ask(ctx, http.MethodGet, "http://"+c.admin+"/debug/decisions/"+t.id, nil)
		if err == nil {
			err = json.Unmarshal(text, &t.decision)
		}
		if err != nil {
			text = []byte(err.Error())
		}
		t.decision.text, t.prefillTook = text, t.ttft
		if a := t.decision.last(); a != nil {
			t.waited = milliseconds(a.Waited)
			t.prefillTook = max(0, t.ttft-t.waited)
			if a.Measured.Prefill > 0 {
				t.prefillTook = milliseconds(a.Measured.Prefill)
			}
		}
	}
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// explain writes why turns changed their server, and the slowest later ones took so long, as the
// gateway remembers.
func explain(what *round, r *Result, log io.Writer) {
	for _, c := range r.changes.changed {
		writeChange(log, what, "went", &c)
	}
	for _, c := range r.changes.needless {
		writeChange(log, what, "went needlessly", &c)
	}
	for _, t := range r.slowest {
		_, _ = fmt.Fprintf(log, "%s: %s took %v to its first token: %s\n", what, t, t.ttft, t.decision.text)
	}
}

func writeChange(log io.Writer, what *round, went string, c *change) {
	_, _ = fmt.Fprintf(log, "%s: %s %s from %s, which held %d of %d tokens, to %s, which held %d; %d were cached: %s\n", what,
		c, went, c.before, c.heldBefore, c.usage.prompt, c.prefill, c.held, c.usage.cached, c.decision.text)
}
