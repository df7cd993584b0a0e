package cost

import (
	"testing"
	"time"
)

// A pair that is slow, or whose transfer failed, comes first and is blamed itself; what is under way
// is counted; a pair as its class is not blamed.
func TestLinks_StatusNamesTheSlowPair(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := NewLinks(DefaultLinks())
	rack := func(id string) *Candidate { return &Candidate{ID: id, Topology: Topology{Rack: "r"}} }
	expected := 200*time.Microsecond + 20*time.Millisecond // 1 GB within a rack
	for i := range 12 {
		for _, d := range []string{"a", "b", "c"} {
			took := expected
			if d == "b" {
				took *= 8
			}
			l.Observe(rack("p").LinkEnd(), rack(d).LinkEnd(), 1e9, took, 0, now.Add(time.Duration(i)*time.Second))
			l.Observe(rack("q").LinkEnd(), rack(d).LinkEnd(), 1e9, expected, 0, now.Add(time.Duration(i)*time.Second))
		}
	}
	now = now.Add(12 * time.Second)
	under := l.Begin(rack("q").LinkEnd(), rack("a").LinkEnd(), 1e9, now)
	defer under.End(now)
	l.Blame("q", "c", now)

	classes, pairs := l.Status(now)
	if len(classes) != 4 || classes[0].Distance.String() != "host" || classes[3].Distance.String() != "far" {
		t.Errorf("classes %+v", classes)
	}
	if speed := classes[SameRack].BytesPerSecond; speed < 40e9 || speed > 60e9 {
		t.Errorf("a rack's links are believed to move %.3g bytes a second", speed)
	}
	if len(pairs) != 6 {
		t.Fatalf("%d pairs: %+v", len(pairs), pairs)
	}
	slow, failed := pairs[0], pairs[1]
	if slow.Prefill != "p" {
		slow, failed = failed, slow
	}
	if slow.Prefill != "p" || slow.Decode != "b" || slow.By != "pair" || slow.Slower < 3 || slow.Measured < 6 || slow.Measured > 9 || slow.Distance != SameRack {
		t.Errorf("the slow pair: %+v", slow)
	}
	if failed.Prefill != "q" || failed.Decode != "c" || failed.By != "pair" || !failed.FailedAt.Equal(now) || failed.Slower < 5 {
		t.Errorf("the pair whose transfer failed: %+v", failed)
	}
	for _, p := range pairs[2:] {
		moving := 0
		if p.Prefill == "q" && p.Decode == "a" {
			moving = 1
		}
		if p.Slower != 1 || p.By != "" || !p.FailedAt.IsZero() || p.Moving != moving || p.Transfers < 11 || p.Measured < 0.9 || p.Measured > 1.1 {
			t.Errorf("a pair as its class: %+v", p)
		}
	}
	if _, later := l.Status(now.Add(slowHalf + time.Second)); !later[0].FailedAt.IsZero() || !later[1].FailedAt.IsZero() {
		t.Errorf("a failure counts for ever: %+v", later[:2])
	}
}
