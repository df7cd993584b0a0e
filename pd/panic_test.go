package pd

import (
	"context"
	"net/http"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/tandem-gateway/tandem/pd/api"
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
		parsed, err := api.ParseBody([]byte(`{"model":"m","prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		req := &Request{ID: "r", Dialect: api.Completions, Model: testModel, Body: parsed, Header: http.Header{}, Stream: stream, Aggregated: true, PromptTokens: 1}
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

type inContext struct{ _ [64]byte }

// What is left on a server, a timer or what it calls when it falls, would hold the request,
// or its context, for a minute or for good.
func TestPanic_WhereALegIsSentLeavesNothing(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newTestFleet(t, 1, testPrompt(100))
		f.Transport = sends(func(*http.Request) (*http.Response, error) { panic(whileSent) })
		body, err := api.ParseBody([]byte(`{"model":"m","prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		// In a frame of its own, which keeps nothing.
		send := func() (weak.Pointer[Request], weak.Pointer[inContext]) {
			req := &Request{ID: "r", Model: testModel, Dialect: api.Completions, Body: body, PromptTokens: 2, Header: http.Header{}, Aggregated: true, Stream: stream}
			in := new(inContext)
			ctx := context.WithValue(context.Background(), inContext{}, in)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("it did not panic")
					}
				}()
				_, _ = f.Run(ctx, req)
			}()
			return weak.Make(req), weak.Make(in)
		}
		req, in := send()
		free := func() bool {
			runtime.GC()
			return req.Value() == nil && in.Value() == nil
		}
		for deadline := time.Now().Add(20 * time.Second); !free(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("stream %v: the request is held %v, its context %v", stream, req.Value() != nil, in.Value() != nil)
				break
			}
		}
	}
}
