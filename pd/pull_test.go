package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// A server that can pull is offered what the server of its class has that holds the most of the
// prompt, and more than itself; one that cannot pull is offered nothing.
func TestSetRemotes_OffersTheBestHolderToThoseThatCanPull(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 2, prompt) // the first holds a quarter of it, the others a sixteenth
	var specs []pools.Spec
	for i, s := range f.Fleet.Servers() {
		spec := s.Spec
		if i < 3 {
			spec.KVAddress = "10.1.0.1:9999" // of its offload tier
		}
		specs = append(specs, spec)
	}
	if err := f.Fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	f.await(t, f.up)
	v := f.Binder.snapshotFor(&f.arrives(prompt, time.Now()).bind, nil, time.Now())
	best := cost.Remote{Server: specs[0].ID(), Tokens: 1600}
	for name, c := range map[string]struct {
		got  cost.Remote
		want cost.Remote
	}{
		"the best holder itself":  {v.candidates.Prefill[0].Remote, cost.Remote{}},
		"prefill that holds less": {v.candidates.Prefill[1].Remote, best},
		"decode that can pull":    {v.candidates.Decode[0].Remote, best},
		"decode that cannot pull": {v.candidates.Decode[1].Remote, cost.Remote{}},
	} {
		if c.got.Server != c.want.Server || c.got.Tokens != c.want.Tokens || (c.got.Latency+c.got.PerByte > 0) != (c.want.Tokens > 0) {
			t.Errorf("%s is offered %+v, want %+v", name, c.got, c.want)
		}
	}
}
