package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"testing"
)

// The official Python SDKs build the answers of a tool loop out of the events, by stricter
// types than the Node SDK: what the events lack makes them raise.
func TestPython_AToolLoopOfResponses(t *testing.T) {
	f := startEngines(t, "--reasoning-tokens", "20")
	var got struct {
		Call, Text      string
		Types, Events   []string
		ReasoningTokens int `json:"reasoning_tokens"`
	}
	runPython(t, &got, "responses.py", startGateway(t, f, ""), f.model)
	if got.Call != "tide" || got.Text == "" || got.ReasoningTokens != 20 || !slices.Equal(got.Types, []string{"reasoning", "function_call", "reasoning", "message"}) {
		t.Errorf("%+v", got)
	}
	for _, event := range []string{"response.reasoning_text.delta", "response.function_call_arguments.delta", "response.output_text.delta", "response.completed"} {
		if !slices.Contains(got.Events, event) {
			t.Errorf("no %s among %v", event, got.Events)
		}
	}
	checkBothOnPairs(t, f)
}

func TestPython_AToolLoopOfMessages(t *testing.T) {
	f := startEngines(t, "--reasoning-tokens", "20")
	var got struct {
		Call struct {
			Name  string
			Input map[string]string
		}
		Text           string
		Types, Reasons []string
		RequestID      string `json:"request_id"`
		PromptTokens   int    `json:"prompt_tokens"`
		Counted        int
		Refused        *struct {
			Type          string
			RequestID     string `json:"request_id"`
			BodyRequestID string `json:"body_request_id"`
		}
	}
	runPython(t, &got, "messages.py", startGateway(t, f, ""), f.model)
	if got.Call.Name != "tide" || got.Call.Input["at"] == "" || got.Text == "" || got.RequestID == "" {
		t.Errorf("%+v", got)
	}
	if !slices.Equal(got.Types, []string{"thinking", "tool_use", "thinking", "text"}) || !slices.Equal(got.Reasons, []string{"tool_use", "end_turn"}) {
		t.Errorf("%v, ended by %v", got.Types, got.Reasons)
	}
	if got.Counted == 0 || got.Counted != got.PromptTokens {
		t.Errorf("%d tokens were counted beforehand, %d used", got.Counted, got.PromptTokens)
	}
	if r := got.Refused; r == nil || r.Type != "not_found_error" || r.RequestID == "" || r.BodyRequestID != r.RequestID {
		t.Errorf("an unknown model is refused by %+v", r)
	}
	checkBothOnPairs(t, f)
}

// checkBothOnPairs asserts that both turns of a tool loop ran on pairs, each with the KV of
// its hand-off.
func checkBothOnPairs(t *testing.T, f fleet) {
	t.Helper()
	if prefill, want := total(t, f.prefill), (truth{PrefillsDone: 2, HandoffsPulled: 2}); prefill != want {
		t.Errorf("prefill servers report %+v, want %+v", prefill, want)
	}
	if decode, want := total(t, f.decode), (truth{DecodesDone: 2}); decode != want {
		t.Errorf("decode servers report %+v, want %+v", decode, want)
	}
}

// runPython runs a script of the directory python with the SDKs, and reads the JSON that it
// prints.
func runPython(t *testing.T, into any, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	// Isolated: neither the scripts nor the user's own packages stand before the SDKs.
	args = append([]string{"-I", "python/" + script}, args...)
	printed, err := exec.CommandContext(ctx, "../../.cache/e2e/python/bin/python", args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s: %v\n%s", script, err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(printed, into); err != nil {
		t.Fatalf("%s printed %q: %v", script, printed, err)
	}
}
