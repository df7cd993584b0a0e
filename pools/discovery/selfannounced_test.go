package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

func TestSelfAnnounced_SilentServersAreForgotten(t *testing.T) {
	var told [][]pools.Spec
	a := NewSelfAnnounced(func(specs []pools.Spec) { told = append(told, specs) })
	start := time.Now()
	announce := func(url string, at time.Duration) {
		t.Helper()
		if err := a.OnAnnouncement(Entry{URL: url, Connector: "p2p-nccl"}.Spec(pools.Prefill), start.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	announce("http://10.0.0.1:1", 0)
	announce("http://10.0.0.2:1", 0)
	announce("http://10.0.0.1:1", 3*time.Second) // as before: nothing to tell
	if len(told) != 2 || len(told[1]) != 2 {
		t.Fatalf("told %v", told)
	}
	if a.forget(start.Add(announcementTTL)) {
		t.Error("forgotten too early")
	}
	if !a.forget(start.Add(announcementTTL + time.Second)) {
		t.Error("the silent one is remembered")
	}
	a.report()
	if last := told[len(told)-1]; len(last) != 1 || last[0].ID() != "10.0.0.1:1" {
		t.Errorf("left are %v", last)
	}
	if err := a.OnAnnouncement(Entry{URL: "file:///etc"}.Spec(pools.Prefill), start); err == nil {
		t.Error("what is no server was heard")
	}
}

// As many are remembered as there can be; one that is known goes on announcing itself.
func TestSelfAnnounced_IsBounded(t *testing.T) {
	reported := 0
	a, now := NewSelfAnnounced(func(specs []pools.Spec) { reported = len(specs) }), time.Now()
	announce := func(i int) error {
		return a.OnAnnouncement(Entry{URL: fmt.Sprintf("http://10.0.%d.%d:1", i>>8, i&255)}.Spec(pools.Prefill), now)
	}
	for i := range maxAnnounced {
		if err := announce(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := announce(maxAnnounced); err == nil || reported != maxAnnounced {
		t.Errorf("one more: %v, %d are reported", err, reported)
	}
	if err := announce(0); err != nil {
		t.Errorf("one that is known: %v", err)
	}
}

// One that falls silent is gone within a tenth of the time that its announcement counts; while
// nothing changes nothing is reported.
func TestSelfAnnounced_RunForgetsTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reports []int
		a := NewSelfAnnounced(func(specs []pools.Spec) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, len(specs))
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.Run(ctx)
		if err := a.OnAnnouncement(Entry{URL: "http://10.0.0.1:1"}.Spec(pools.Prefill), time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(announcementTTL)
		synctest.Wait()
		expect := func(when string, want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(reports, want) {
				t.Errorf("%s: reported %v, want %v", when, reports, want)
			}
		}
		expect("it counts", 1)
		time.Sleep(announcementTTL / 10)
		synctest.Wait()
		expect("it is silent", 1, 0)
		time.Sleep(time.Hour)
		expect("nothing changes", 1, 0)
	})
}

// Servers announce themselves while others are forgotten.
func TestSelfAnnounced_IsSafeForConcurrentUse(t *testing.T) {
	a, now := NewSelfAnnounced(func([]pools.Spec) {}), time.Now()
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for j := range 100 {
				if err := a.OnAnnouncement(Entry{URL: fmt.Sprintf("http://10.0.%d.%d:1", i, j)}.Spec(pools.Prefill), now); err != nil {
					t.Error(err)
				}
				a.forget(now)
			}
		})
	}
	wg.Wait()
	if n := len(a.received); n != 300 {
		t.Errorf("%d of 300 are known", n)
	}
}
