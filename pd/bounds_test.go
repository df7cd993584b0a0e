package pd

import (
	"bytes"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

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
