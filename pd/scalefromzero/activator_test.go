package scalefromzero

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

const testModel = "llama"

// engines makes every server healthy with one model.
type engines struct{}

func (engines) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.URL.Path == "/v1/models" {
		body = `{"data":[{"id":"` + testModel + `"}]}`
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}, Request: r}, nil
}

// A held request looks at the fleet when something has changed, and once in a while, however
// many servers change.
func TestHold_LooksAreAsManyAsChangesAndFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		var looks atomic.Int64
		var lookedAt atomic.Pointer[time.Time]
		ended := make(chan error)
		go func() {
			ended <- lookUntil(ctx, changed, func() (bool, error) {
				now := time.Now()
				looks.Add(1)
				lookedAt.Store(&now)
				return false, nil
			})
		}()
		change := func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		time.Sleep(time.Minute)
		if n := looks.Swap(0); n < 50 || n > 61 {
			t.Errorf("%d looks in a minute in which nothing changed", n)
		}
		for range 512 {
			change()
			time.Sleep(2 * time.Millisecond)
		}
		if n := looks.Load(); n > 21 {
			t.Errorf("%d looks at 512 changes in a second", n)
		}
		time.Sleep(2*capacityBeat + capacityBeat/3)
		change()
		at := time.Now()
		time.Sleep(capacityBeat / 2)
		if after := lookedAt.Load().Sub(at); after <= 0 || after > capacityStep {
			t.Errorf("looked %v after a change", after)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// What a request is held for wakes it: servers that come.
func TestHold_ServersThatComeWakeARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		fleet := pools.NewFleet(pools.Default(), log)
		health.Watch(fleet, engines{}, log)
		defer fleet.Close()
		q := queue.New(queue.Default())
		entry, err := q.Enter(t.Context(), queue.Request{Model: testModel})
		if err != nil {
			t.Fatal(err)
		}
		woken := make(chan time.Time, 1)
		go func() {
			if err := awaitCapacity(t.Context(), fleet, q, entry, testModel); err != nil {
				t.Error(err)
			}
			woken <- time.Now()
		}()
		time.Sleep(10*capacityBeat + capacityBeat/3)
		came := time.Now()
		if err := fleet.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Both, Connector: "nixl"}}); err != nil {
			t.Fatal(err)
		}
		if after := (<-woken).Sub(came); after > 2*capacityStep {
			t.Errorf("woken %v after its server was up", after)
		}
	})
}
