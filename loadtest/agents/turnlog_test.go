package agents

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// remembered are decisions as the gateway shows them at /debug/decisions, by request.
var remembered = map[string]string{
	"pair": `{"attempts":[{"waited_ms":1,"tokens":{"known":1},"measured":{},"alternatives":[{"prefill":"p9","decode":"d9","chosen":true}]},
		{"waited_ms":3,"tokens":{"known":900,"whole":true},"measured":{"prefill_ms":40,"transfer_ms":5,"first_token_ms":46},"alternatives":[
		{"prefill":"p0","decode":"d0","first_token_ms":60,"queue_ms":10,"prefill_ms":45,"transfer_ms":5,"prefill_cached":100,"decode_cached":0},
		{"prefill":"p1","decode":"d1","chosen":true,"first_token_ms":50,"queue_ms":7,"prefill_ms":38,"transfer_ms":4,"prefill_cached":800,"decode_cached":16}]}]}`,
	"alone": `{"attempts":[{"waited_ms":0,"tokens":{"known":0,"unknown":"late"},"measured":{"first_token_ms":9},"alternatives":[
		{"decode":"d1","chosen":true,"first_token_ms":8,"queue_ms":0,"prefill_ms":8,"transfer_ms":0,"prefill_cached":0,"decode_cached":32}]}]}`,
}

// The turn log has a line for each turn that the gateway remembers, with what was predicted of
// the alternative that was taken in the last attempt beside what was measured, in milliseconds
// of the engines: a run at twice their speed has half of them.
func TestTurnLog_SaysWhereATurnsTimeWent(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := remembered[strings.TrimPrefix(r.URL.Path, "/debug/decisions/")]
		if !known {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer admin.Close()
	began := time.Unix(1_700_000_000, 0)
	of := &conversation{session: 4}
	turnOf := func(id string, c *conversation, number int, after time.Duration) *turn {
		x := logged(c, number, "")
		x.id, x.sent, x.ttft = id, began.Add(after), 25*time.Millisecond
		x.usage.prompt, x.usage.cached = 900, 784
		return x
	}
	turns := []*turn{
		turnOf("pair", of, 2, 0), turnOf("forgotten", of, 3, time.Second), turnOf("alone", &conversation{session: 4, parent: of}, 0, 2*time.Second),
	}
	(&cluster{admin: strings.TrimPrefix(admin.URL, "http://")}).remember(t.Context(), turns)
	var out strings.Builder
	log, err := newTurnLog(&out)
	if err != nil {
		t.Fatal(err)
	}
	if err := logTurns(&round{run: run{API: "chat", Servers: 2, Cache: Ample, Policy: "tandem"}, seed: 7}, turns, 2, log); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	if err != nil || len(lines) != 3 {
		t.Fatalf("%d lines, %v, want a heading and two turns:\n%s", len(lines), err, out.String())
	}
	common := map[string]string{
		"api": "chat", "servers": "2", "cache": Ample, "policy": "tandem", "seed": "7", "session": "4", "prompt_tokens": "900", "cached_tokens": "784", "ttft_ms": "50.0",
	}
	for i, want := range []map[string]string{
		{
			"sent_ms": "0.0", "sub_agent": "false", "turn": "2", "prefill": "p1", "decode": "d1",
			"predicted_cached_tokens": "800", "known_tokens": "900", "unknown": "", "gateway_ms": "6.0", "predicted_queue_ms": "14.0",
			"predicted_prefill_ms": "76.0", "predicted_transfer_ms": "8.0", "predicted_first_ms": "100.0", "prefill_ms": "80.0", "transfer_ms": "10.0", "first_ms": "92.0",
		}, {
			"sent_ms": "4000.0", "sub_agent": "true", "turn": "0", "prefill": "", "decode": "d1",
			"predicted_cached_tokens": "32", "known_tokens": "0", "unknown": "late", "gateway_ms": "0.0", "predicted_queue_ms": "0.0",
			"predicted_prefill_ms": "16.0", "predicted_transfer_ms": "0.0", "predicted_first_ms": "16.0", "prefill_ms": "0.0", "transfer_ms": "0.0", "first_ms": "18.0",
		},
	} {
		maps.Copy(want, common)
		got := make(map[string]string)
		for column, name := range lines[0] {
			got[name] = lines[i+1][column]
		}
		if !maps.Equal(got, want) {
			t.Errorf("line %d:\n%v, want\n%v", i+1, got, want)
		}
	}
}

// The time of turns adds up to their first tokens, and what was predicted of those that a pair
// served stands beside it.
func TestBreakdown_SaysWhereTheTimeWent(t *testing.T) {
	turns := []*turn{
		{prefill: "p1", ttft: 60 * time.Millisecond, usage: usage{900, 700}, changed: true},
		{ttft: 20 * time.Millisecond, usage: usage{900, 32}},
		{prefill: "p1", ttft: 40 * time.Millisecond},
	}
	for i, id := range []string{"pair", "alone"} {
		if err := json.Unmarshal([]byte(remembered[id]), &turns[i].decision); err != nil {
			t.Fatal(err)
		}
	}
	const want = "the slowest 3 took 0.080 s: 0.002 until servers were chosen, 0.027 in prefill and its queue (predicted 0.030), 0.003 for transfer and step (0.003), 0.048 otherwise; " +
		"decode computed 1 alone, 1 changed their server without need, 1 had less cached than believed, of 1 tokens were not known"
	if got := newBreakdown(turns, 2).String(); got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}
