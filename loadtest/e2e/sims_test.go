package e2e

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"testing"
)

// TestForeignEngines: the gateway in front of engines of another project, driven by
// SDKs of a third, watched by a Jaeger.
func TestForeignEngines(t *testing.T) {
	j := startJaeger(t)
	f := startSims(t)
	gateway := startGateway(t, f, j.otlp)
	good := driveAnswers(t, gateway, f)
	if t.Failed() {
		return
	}
	t.Run("each request was prefilled on a prefill server", func(t *testing.T) {
		// The sims count an answer a moment after they have given it.
		waitFor(t, nil, fmt.Sprintf("%d prefills", len(good)), readyWithin, func() error {
			remote := 0
			for _, server := range f.prefill {
				remote += finished(t, server, "remote_decode")
			}
			if remote != len(good) {
				return fmt.Errorf("%d prefills for %d answered requests", remote, len(good))
			}
			return nil
		})
		for _, server := range f.prefill {
			if n := finished(t, server, "stop") + finished(t, server, "length"); n != 0 {
				t.Errorf("%s, a prefill server, decoded %d requests", server, n)
			}
		}
		for _, server := range f.decode {
			if n := finished(t, server, "remote_decode"); n != 0 {
				t.Errorf("%s, a decode server, prefilled %d requests for others", server, n)
			}
		}
	})
	for i, a := range good {
		t.Run(fmt.Sprintf("trace %d", i), func(t *testing.T) { checkTrace(t, j, a) })
	}
	t.Run("errors", func(t *testing.T) { driveErrors(t, gateway, f) })
}

// finished asks a sim how many requests ended for a reason, by its own metrics.
func finished(t *testing.T, server, reason string) int {
	t.Helper()
	res, err := client.Get(server + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^vllm:request_success_total\{finish_reason="` + reason + `",.*\} (\d+)$`)
	found := line.FindSubmatch(text)
	if found == nil {
		return 0 // the sim has no such line before the first
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkTrace asserts that Jaeger shows the request as one trace with both legs.
func checkTrace(t *testing.T, j jaeger, a answer) {
	t.Helper()
	steps := []string{"admit", "wait", "choose", "prefill", "decode"}
	if a.Stream {
		steps = append(steps, "stream")
	}
	spans := j.trace(t, a.Headers["x-request-id"], append(steps, "request")...)
	byID := map[string]span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	roots := named(spans, "request")
	if len(roots) != 1 {
		t.Fatalf("%d spans named request", len(roots))
	}
	root := roots[0]
	for _, step := range steps {
		for _, s := range named(spans, step) {
			if !under(s, root.ID, byID) {
				t.Errorf("span %s is not under the request's", step)
			}
		}
	}
	prefill, decode := named(spans, "prefill"), named(spans, "decode")
	if len(prefill) != 1 || len(decode) != 1 {
		t.Fatalf("%d prefill and %d decode spans, want one of each", len(prefill), len(decode))
	}
	if prefill[0].StartMicros+prefill[0].DurationMicros > decode[0].StartMicros+1000 {
		t.Error("decode began before prefill had ended")
	}
}

// under says whether a span is a descendant of the one with this ID.
func under(s span, ancestor string, byID map[string]span) bool {
	for range byID {
		if s.parent() == ancestor {
			return true
		}
		next, ok := byID[s.parent()]
		if !ok {
			return false
		}
		s = next
	}
	return false
}
