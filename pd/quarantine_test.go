package pd

import (
	"testing"
	"time"
)

// A body may have megabytes: it is hashed for a request that is in flight on a server that
// dies, and for others while there are suspects, once each.
func TestQuarantine_HashesARequestOnceAndOnlyWhereItMatters(t *testing.T) {
	body, err := ParseBody([]byte(`{"model":"m","prompt":"deadly"}`))
	if err != nil {
		t.Fatal(err)
	}
	newRequest := func() *Request { return &Request{Dialect: Completions, Body: body} }
	q, now := NewQuarantine(), time.Now()
	req := newRequest()
	j := newRequestState(req, now)
	if q.Holds(req, now) || req.fingerprinted {
		t.Error("nobody is suspected, and it was hashed")
	}
	ranked := *j.req // as both legs carry it
	ranked.Body = ranked.Body.With(Edit{"priority", []byte("7")})
	j.req = &ranked
	for _, server := range []string{"a", "b"} {
		q.Died(j.came.Fingerprint(), death{server: server}, now)
	}
	again := newRequest()
	if !q.Holds(again, now) || !again.fingerprinted {
		t.Error("it killed two servers as it came, and comes again unhindered")
	}
	again.Body = Body{} // a second hash would differ
	if !q.Holds(again, now) {
		t.Error("it was hashed twice")
	}
}
