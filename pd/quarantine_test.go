package pd

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// A body may have megabytes: it is hashed for a request that is in flight on a server that
// dies, and for others while there are suspects, once each.
func TestQuarantine_HashesARequestOnceAndOnlyWhereItMatters(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","prompt":"deadly"}`))
	if err != nil {
		t.Fatal(err)
	}
	newRequest := func() *Request { return &Request{Dialect: api.Completions, Body: body} }
	q, now := NewQuarantine(), time.Now()
	req := newRequest()
	j := newRequestState(req, now)
	if q.Holds(req, now) || req.fingerprinted {
		t.Error("nobody is suspected, and it was hashed")
	}
	ranked := *j.req // as both legs carry it
	ranked.Body = ranked.Body.With(api.Set("priority", []byte("7")))
	j.req = &ranked
	for _, server := range []string{"a", "b"} {
		q.Died(j.came.Fingerprint(), death{server: server}, now)
	}
	again := newRequest()
	if !q.Holds(again, now) || !again.fingerprinted {
		t.Error("it killed two servers as it came, and comes again unhindered")
	}
	again.Body = api.Body{} // a second hash would differ
	if !q.Holds(again, now) {
		t.Error("it was hashed twice")
	}
}

// A request of whose hand-off an engine died is not handed over again.
func TestDeath_OfAHandOffMakesTheRequestRunWhole(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(320))
	now := time.Now()
	j := f.arrives(testPrompt(160), now)
	a, err := f.Binder.bindNow(j)
	if err != nil || a.prefill == nil {
		t.Fatalf("%+v, %v", a, err)
	}
	j.given = f.transfer(j, a).Handoff()
	j.given.Kept = true
	failed := &LegError{Leg: DecodeLeg, Server: a.decode.Server().ID(), Kind: Broken, Status: http.StatusInternalServerError,
		Body: []byte(`{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`)}
	if !failed.engineDied() || f.Suspects.Died(j.came.Fingerprint(), j.death(failed), now) {
		t.Errorf("%+v", failed)
	}
	again, other := f.arrives(testPrompt(160), now), f.journey(&Request{Dialect: api.Completions}, now)
	if !again.alone || other.alone {
		t.Errorf("the request again: %v, another: %v", again.alone, other.alone)
	}
	j.release()
	if list := f.Suspects.List(now); len(list) != 1 || !strings.Contains(list[0].Causes[0], "chat template") {
		t.Errorf("%+v", list)
	}
}
