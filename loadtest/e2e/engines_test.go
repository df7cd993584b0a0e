package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestTandemEngines: the same calls in front of the engines that check each hand-off,
// and answer with a text that depends on every token before it.
func TestTandemEngines(t *testing.T) {
	f := startEngines(t)
	gateway := startGateway(t, f, "")
	good := driveAnswers(t, gateway, f)
	if t.Failed() {
		return
	}
	t.Run("each hand-off was used", func(t *testing.T) { checkHandoffs(t, f, len(good)) })
	t.Run("errors", func(t *testing.T) { driveErrors(t, gateway, f) })
	t.Run("broken stream", func(t *testing.T) { driveBrokenStreams(t, gateway, f) })
}

// truth is what an engine says of itself at GET /sim/state; counts since its start.
type truth struct {
	PrefillsDone     int `json:"prefills_done"`
	DecodesDone      int `json:"decodes_done"`
	AggregatedDone   int `json:"aggregated_done"`
	HandoffsOpen     int `json:"handoffs_open"`
	HandoffsPulled   int `json:"handoffs_pulled"`
	HandoffsRejected int `json:"handoffs_rejected"`
	Recomputed       int `json:"recomputed"`
	LoadFailures     int `json:"load_failures"`
}

// checkHandoffs asserts that so many requests were each prefilled once on a prefill
// server, handed over once, and decoded with the KV of that hand-off.
func checkHandoffs(t *testing.T, f fleet, requests int) {
	t.Helper()
	prefill, decode := total(t, f.prefill), total(t, f.decode)
	want := truth{PrefillsDone: requests, HandoffsPulled: requests}
	if prefill != want {
		t.Errorf("prefill servers report %+v, want %+v", prefill, want)
	}
	// The direct calls, one for each, were made to a decode server.
	want = truth{DecodesDone: requests, AggregatedDone: requests}
	if decode != want {
		t.Errorf("decode servers report %+v, want %+v", decode, want)
	}
}

// total adds up what several engines say.
func total(t *testing.T, servers []string) truth {
	t.Helper()
	var sum truth
	for _, server := range servers {
		var one truth
		if err := getJSON(server+"/sim/state", &one); err != nil {
			t.Fatal(err)
		}
		sum.PrefillsDone += one.PrefillsDone
		sum.DecodesDone += one.DecodesDone
		sum.AggregatedDone += one.AggregatedDone
		sum.HandoffsOpen += one.HandoffsOpen
		sum.HandoffsPulled += one.HandoffsPulled
		sum.HandoffsRejected += one.HandoffsRejected
		sum.Recomputed += one.Recomputed
		sum.LoadFailures += one.LoadFailures
	}
	return sum
}

// driveBrokenStreams lets decode die in the middle of an answer: both SDKs must raise,
// for an answer that stops early and looks complete is the worst of all.
// Each leg dies after two tokens, so that no answer ends by itself within the legs that one stream may have.
func driveBrokenStreams(t *testing.T, gateway string, f fleet) {
	for _, client := range sdks {
		for _, api := range []string{"chat", "completions"} {
			for _, stream := range []bool{true, false} {
				name := fmt.Sprintf("%s/%s/stream=%v", client.name, api, stream)
				t.Run(name, func(t *testing.T) {
					c := call{API: api, Model: f.model, Prompt: prompt("broken "+name, promptWords), MaxTokens: 40, Stream: stream}
					for _, server := range f.decode {
						setFault(t, server, map[string]any{"kind": "die_after_tokens", "tokens": 2})
					}
					got := client.do(t, gateway, c)
					for _, server := range f.decode {
						clearFaults(t, server)
					}
					if got.Error == nil {
						t.Fatalf("looked like success, finish_reason %q, text %q, raw %.2000s", got.Finish, got.Text, got.Raw)
					}
					if stream && (got.Chunks == 0 || got.Finish != "") {
						t.Errorf("%d chunks and finish_reason %q before the break, want some and none", got.Chunks, got.Finish)
					}
					if strings.Contains(got.Raw, "[DONE]") && !strings.Contains(got.Raw, `"error"`) {
						t.Errorf("a clean end of a broken stream: %.2000s", got.Raw)
					}
				})
			}
		}
	}
}

// setFault tells an engine how to misbehave from now on.
func setFault(t *testing.T, server string, fault map[string]any) {
	t.Helper()
	body, err := json.Marshal(fault)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Post(server+"/sim/faults", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		t.Fatalf("setting the fault %s: %s", body, res.Status)
	}
}

func clearFaults(t *testing.T, server string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, server+"/sim/faults", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		t.Fatalf("clearing faults: %s", res.Status)
	}
}
