package pd

import (
	"context"
	"net/http"
	"testing"
)

// sends is a round tripper that a test invents.
type sends func(*http.Request) (*http.Response, error)

func (s sends) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

const whileSent = "while a leg is sent"

// A panic while a leg is sent leaves nothing of the leg behind: its context has ended, and
// with it its timer and what it asked of its server.
func TestPanic_WhileALegIsSentEndsTheLeg(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newTestFleet(t, 1, testPrompt(100))
		var leg context.Context
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			leg = r.Context()
			panic(whileSent)
		})
		parsed, err := ParseBody([]byte(`{"model":"m","prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		req := &Request{ID: "r", Dialect: Completions, Model: testModel, Body: parsed, Header: http.Header{}, Stream: stream, Aggregated: true, PromptTokens: 1}
		func() {
			defer func() {
				if said := recover(); said != whileSent {
					t.Errorf("it panicked with %v", said)
				}
			}()
			_, _ = f.Run(t.Context(), req)
		}()
		if leg == nil || leg.Err() == nil {
			t.Errorf("stream %v: its leg goes on", stream)
		}
	}
}
