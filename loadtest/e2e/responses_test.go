package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"testing"
)

// The official SDK's stream helper builds the answers of a tool loop out of the events:
// what they lack makes it throw.
func TestResponses_AToolLoopThroughTheSDKsStreamHelper(t *testing.T) {
	f := startEngines(t)
	gateway := startGateway(t, f, "")
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	printed, err := exec.CommandContext(ctx, "../../.cache/e2e/node-bin", "../../.cache/e2e/node/responses.mjs", gateway, f.model).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var got struct {
		Call, Text string
		Types      []string
	}
	if err := json.Unmarshal(printed, &got); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	if got.Call != "tide" || got.Text == "" || !slices.Equal(got.Types, []string{"function_call", "message"}) {
		t.Errorf("%s", printed)
	}
}
