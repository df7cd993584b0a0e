package pd

import (
	"bytes"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestBudget_ARatioOfTheRequestsAndAFloor(t *testing.T) {
	b := NewBudget(0.2, 10)
	now := testTime
	take := func() (n int) {
		for b.TakeRetry(now) {
			n++
		}
		return n
	}
	if got := take(); got != 10 {
		t.Errorf("without traffic: %d retries", got)
	}
	for range 1000 {
		b.CountRequest(now)
	}
	if got := take(); got != 200 {
		t.Errorf("after 1,000 requests: %d more", got)
	}
	now = now.Add(9 * time.Second)
	if got := take(); got != 0 {
		t.Errorf("9 s later: %d more", got)
	}
	now = now.Add(time.Second)
	if got := take(); got != 10 {
		t.Errorf("10 s later: %d more", got)
	}
	now = now.Add(-time.Hour) // a clock that is set back
	if got := take(); got != 0 {
		t.Errorf("an hour earlier: %d more", got)
	}
}

// bodyOf is a request whose body has so many bytes, at least two.
func bodyOf(n int) *Request {
	body, err := api.ParseBody(append([]byte("{}"), bytes.Repeat([]byte(" "), max(0, n-len("{}")))...))
	if err != nil {
		panic(err)
	}
	return &Request{Body: body}
}

func TestDecisions_RememberTheLast(t *testing.T) {
	d := NewDecisions(3)
	for _, id := range []string{"a", "b", "c", "d", "b"} {
		d.Add(Decision{RequestID: id, Outcome: id + "!"})
	}
	if _, found := d.Find("a"); found {
		t.Error("the oldest is still there")
	}
	for _, id := range []string{"c", "d", "b"} {
		if got, found := d.Find(id); !found || got.Outcome != id+"!" {
			t.Errorf("%s: %+v, %v", id, got, found)
		}
	}
}
