package pd

import (
	"net/http"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// A server is asked once which engines compute on it, as long as its pairs go well.
func TestEngineIDs_AServerIsAskedOnceInItsLife(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: with(t, engine.ConnectorMooncake)})
	through, asked := f.Transport, 0
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet && r.URL.Path == "/query" {
			asked++
		}
		return through.RoundTrip(r)
	})
	for range 3 {
		if got := f.served(f.asks(api.Chat, more(api.Chat, false))); got.Prefill == "" {
			t.Fatal("it ran on decode alone")
		}
	}
	if asked != 1 {
		t.Errorf("for three pairs it was asked %d times", asked)
	}
	f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Count: 1})
	for range 2 { // the first fails as a pair
		f.served(f.asks(api.Chat, more(api.Chat, false)))
	}
	if asked != 2 {
		t.Errorf("after a pair that failed it was asked %d times in all", asked)
	}
	f.nothingIsLeft()
}

// Where a prefill server does not say which engines compute on it, it has failed: no server can
// meet them. The request is served by decode alone.
func TestEngineIDs_AServerThatDoesNotSayHasFailed(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: with(t, engine.ConnectorMooncake)})
	through := f.Transport
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/query" {
			return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
		return through.RoundTrip(r)
	})
	s := f.server(f.prefill[0])
	for range 5 {
		if got := f.served(f.asks(api.Chat, more(api.Chat, false))); got.Prefill != "" {
			t.Errorf("a pair with %s answers", got.Prefill)
		}
	}
	if state := s.Breaker(pools.Prefill, time.Now()); state != breaker.Open {
		t.Errorf("its breaker is %s", state)
	}
	f.nothingIsLeft()
}
