package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// A server that sleeps is chosen when waking it costs less than waiting elsewhere, so its
// waking is part of what it costs.
func TestFit_ASleepingServerCostsItsWaking(t *testing.T) {
	f := newTestFleet(t, 2, testPrompt(1000))
	sleepy := f.Fleet.Servers()[2].Spec
	sleepy.GPUs = "gpu-0"
	specs := []pools.Spec{sleepy}
	for _, s := range f.Fleet.Servers() {
		if s.ID() != sleepy.ID() {
			specs = append(specs, s.Spec)
		}
	}
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.await(t, func() bool { return f.Fleet.Servers()[0].Asleep() })
	now := time.Now()
	r := &f.arrives(testPrompt(1000), now).bind
	v := f.Binder.snapshotFor(r, nil, now)
	for _, c := range v.candidates.Decode {
		want := time.Duration(0)
		if c.ID == sleepy.ID() {
			want = pools.DefaultSleep().Wake
		}
		if c.Ready != want {
			t.Errorf("%s is ready in %v, want %v", c.ID, c.Ready, want)
		}
	}
}
