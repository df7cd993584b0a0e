package pd

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
)

// A body may have megabytes: it is hashed for a request that is in flight on a server that
// dies, and for others while there are suspects, once each.
func TestQuarantine_HashesARequestOnceAndOnlyWhereItMatters(t *testing.T) {
	body, err := api.ParseBody([]byte(`{"model":"m","prompt":"deadly"}`))
	if err != nil {
		t.Fatal(err)
	}
	newRequest := func() *Request { return &Request{Dialect: api.Completions, Body: body} }
	q, now := retry.NewQuarantine(), time.Now()
	req := newRequest()
	st := &requestState{client: req, req: req}
	if q.IsQuarantined(req, now) || req.fingerprinted {
		t.Error("no request is suspected, and it was hashed")
	}
	ranked := *st.req // as both legs carry it
	ranked.Body = ranked.Body.With(api.Set("priority", []byte("7")))
	st.req = &ranked
	for i, server := range []string{"a", "b"} {
		q.RecordDeath(st.client.Fingerprint(), retry.Death{Server: server, Sent: now.Add(time.Duration(i))}, now)
	}
	again := newRequest()
	if !q.IsQuarantined(again, now) || !again.fingerprinted {
		t.Error("it killed two servers as it came, and comes again unhindered")
	}
	again.Body = api.Body{} // a second hash would differ
	if !q.IsQuarantined(again, now) {
		t.Error("it was hashed twice")
	}
}

// A request of whose hand-off an engine died is not handed over again.
func TestDeath_OfAHandOffMakesTheRequestRunWhole(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(320))
	now := time.Now()
	st := f.arrives(testPrompt(160), now)
	b, err := f.Binder.bindNow(&st.bind)
	if err != nil || b.prefill == nil {
		t.Fatalf("%+v, %v", b, err)
	}
	st.lastHandoff = st.transfer(b).Handoff()
	st.lastHandoff.Kept = true
	failed := &LegError{Leg: DecodeLeg, Server: b.decode.Server().ID(), Kind: Broken, Status: http.StatusInternalServerError,
		Body: []byte(`{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`)}
	if !failed.engineDied() || f.Suspects.RecordDeath(st.client.Fingerprint(), st.causeOfDeath(failed), now) {
		t.Errorf("%+v", failed)
	}
	again, other := f.arrives(testPrompt(160), now), &requestState{client: &Request{Dialect: api.Completions}, entry: &queue.Entry{}, arrived: now}
	f.reset(other)
	if !again.bind.tried.mustAggregate || other.bind.tried.mustAggregate {
		t.Errorf("the request again: %v, another: %v", again.bind.tried.mustAggregate, other.bind.tried.mustAggregate)
	}
	b.release()
	if list := f.Suspects.List(now); len(list) != 1 || !strings.Contains(list[0].Causes[0], "chat template") {
		t.Errorf("%+v", list)
	}
}

// Equal bodies of two APIs are two requests.
func TestFingerprint_TellsTheAPIsOfARequestApart(t *testing.T) {
	chat, completion := bodyOf(10), bodyOf(10)
	chat.Dialect, completion.Dialect = api.Chat, api.Completions
	if chat.Fingerprint() == completion.Fingerprint() {
		t.Error("requests of two APIs are taken for one")
	}
}
