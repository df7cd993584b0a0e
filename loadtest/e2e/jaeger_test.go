package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// jaeger is a Jaeger all-in-one that keeps its traces in memory.
type jaeger struct {
	otlp  string // where the gateway sends its spans
	query string
}

func startJaeger(t *testing.T) jaeger {
	t.Helper()
	otlp, query := freeAddress(t), freeAddress(t)
	// It would trace itself, too, and wait for its own collector when it stops.
	p := process.Start(t, []string{"OTEL_TRACES_SAMPLER=always_off"}, "jaeger", ".cache/e2e/jaeger", "--log-level", "warn",
		"--collector.otlp.http.host-port", otlp, "--query.http-server.host-port", query,
		// The rest is not used, but would collide with another Jaeger of this machine.
		"--collector.otlp.grpc.host-port", freeAddress(t), "--collector.grpc-server.host-port", freeAddress(t),
		"--collector.http-server.host-port", freeAddress(t), "--query.grpc-server.host-port", freeAddress(t),
		"--admin.http.host-port", freeAddress(t))
	j := jaeger{otlp: "http://" + otlp, query: "http://" + query}
	waitFor(t, p, "Jaeger to answer", readyWithin, answers(j.query+"/api/services"))
	return j
}

// span is a span as Jaeger's query API tells it.
type span struct {
	ID         string `json:"spanID"`
	Operation  string `json:"operationName"`
	References []struct {
		Type string `json:"refType"`
		ID   string `json:"spanID"`
	} `json:"references"`
	StartMicros    int64 `json:"startTime"`
	DurationMicros int64 `json:"duration"`
	Tags           []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"tags"`
}

// parent is the ID of the span's parent, empty for a root.
func (s span) parent() string {
	for _, r := range s.References {
		if r.Type == "CHILD_OF" {
			return r.ID
		}
	}
	return ""
}

// trace waits for the trace of the request that the gateway answered with this
// x-request-id, until all of the named spans have arrived, and returns its spans.
func (j jaeger) trace(t *testing.T, requestID string, names ...string) []span {
	t.Helper()
	tags, err := json.Marshal(map[string]string{"tandem.request_id": requestID})
	if err != nil {
		t.Fatal(err)
	}
	find := j.query + "/api/traces?service=tandem&tags=" + url.QueryEscape(string(tags))
	var spans []span
	waitFor(t, nil, "the trace of "+requestID, readyWithin, func() error {
		var found struct {
			Data []struct {
				Spans []span `json:"spans"`
			} `json:"data"`
		}
		if err := getJSON(find, &found); err != nil {
			return err
		}
		if len(found.Data) != 1 {
			return fmt.Errorf("%d traces found", len(found.Data))
		}
		spans = found.Data[0].Spans
		for _, name := range names {
			if len(named(spans, name)) == 0 {
				return fmt.Errorf("no span %q among %d", name, len(spans))
			}
		}
		return nil
	})
	return spans
}

// named returns the spans of one operation.
func named(spans []span, operation string) []span {
	var found []span
	for _, s := range spans {
		if s.Operation == operation {
			found = append(found, s)
		}
	}
	return found
}
