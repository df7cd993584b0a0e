package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// jaeger is a Jaeger with the configuration of deploy, at addresses of its own.
type jaeger struct {
	otlp  string // where the gateway sends its spans
	query string
}

func startJaeger(t *testing.T) jaeger {
	t.Helper()
	otlp, query := freeAddress(t), freeAddress(t)
	p := start(t, "jaeger", ".cache/e2e/jaeger", "--config", filepath.Join(process.Root(t), "deploy/jaeger.yaml"),
		"--set", "receivers.otlp.protocols.http.endpoint="+otlp,
		"--set", "extensions.jaeger_query.http.endpoint="+query, "--set", "extensions.jaeger_query.grpc.endpoint="+freeAddress(t))
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
	Tags           []tag `json:"tags"`
	Logs           []struct {
		Fields []tag `json:"fields"`
	} `json:"logs"`
}

// tag is an attribute; numbers are float64.
type tag struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// tag is the value of an attribute, nil where it has none.
func (s span) tag(key string) any {
	for _, t := range s.Tags {
		if t.Key == key {
			return t.Value
		}
	}
	return nil
}

// links are the spans that it is linked to: Jaeger shows them as what it follows from.
func (s span) links() (ids []string) {
	for _, r := range s.References {
		if r.Type == "FOLLOWS_FROM" {
			ids = append(ids, r.ID)
		}
	}
	return ids
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

// named returns the spans of one operation, the first to begin first.
func named(spans []span, operation string) []span {
	var found []span
	for _, s := range spans {
		if s.Operation == operation {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.StartMicros, b.StartMicros) })
	return found
}
