package discovery

import (
	"testing"
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
