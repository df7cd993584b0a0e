package autoscale

import (
	"testing"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/pools"
)

// A request in a gateway's queue waits for the pool that an engine's queue would have
// told of.
func TestState_WhoRequestsWaitFor(t *testing.T) {
	engines := []Hardware{
		{Role: pools.Prefill, Ready: 2, Waiting: 3, servers: 2, busy: 2},
		{Role: pools.Decode, Ready: 1, Waiting: 1, servers: 1},
		{Role: pools.Decode, Variant: "other", Ready: 1, Waiting: 1, servers: 1},
	}
	idle := engines[0]
	idle.busy = 1
	both := Hardware{Role: pools.Decode, Ready: 1, Convertible: 1, servers: 1}
	for _, of := range []struct {
		name            string
		hardware        []Hardware
		prefill, decode float64
	}{
		{"prefill servers are busy", engines, 3 + 5, 2},
		{"one has nothing to do: decode has no room", append([]Hardware{idle}, engines[1:]...), 3, 2 + 5},
		{"no decode server", engines[:1], 3, 20},
		{"no prefill server", engines[1:], 20, 2},
		{"no server", nil, 20, 20},
		{"servers that do both", []Hardware{both}, 0, 5},
	} {
		state := State{Hardware: of.hardware}
		g := sumUp(of.hardware)
		state.wait(&g, &demand.Total{Waiting: demand.Work{Requests: 20}, Queued: 5})
		if state.PrefillWaiting != of.prefill || state.DecodeWaiting != of.decode {
			t.Errorf("%s: %v for prefill and %v for decode, want %v and %v", of.name, state.PrefillWaiting, state.DecodeWaiting, of.prefill, of.decode)
		}
	}
}
