package pools

import (
	"testing"
	"time"
)

func TestAnnounced_SilentServersAreForgotten(t *testing.T) {
	var told [][]Spec
	a := NewAnnounced(func(specs []Spec) { told = append(told, specs) })
	start := time.Now()
	hear := func(url string, at time.Duration) {
		t.Helper()
		if err := a.Hear(Entry{URL: url, Connector: "p2p-nccl"}.Spec(Prefill), start.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	hear("http://10.0.0.1:1", 0)
	hear("http://10.0.0.2:1", 0)
	hear("http://10.0.0.1:1", 3*time.Second) // as before: nothing to tell
	if len(told) != 2 || len(told[1]) != 2 {
		t.Fatalf("told %v", told)
	}
	if a.forget(start.Add(announcedLife)) {
		t.Error("forgotten too early")
	}
	if !a.forget(start.Add(announcedLife + time.Second)) {
		t.Error("the silent one is remembered")
	}
	a.tell()
	if last := told[len(told)-1]; len(last) != 1 || last[0].ID() != "10.0.0.1:1" {
		t.Errorf("left are %v", last)
	}
	if err := a.Hear(Entry{URL: "file:///etc"}.Spec(Prefill), start); err == nil {
		t.Error("what is no server was heard")
	}
}
