package policy

import (
	"math"
	"testing"
)

// storeCluster is an idle cluster with a store, and one request of so many tokens on a server.
func storeCluster(t *testing.T, prompt int) (*cluster, *job) {
	t.Helper()
	req := Request{Prompt: prompt, Output: 10}
	for i := range blocksOf(prompt) {
		req.Blocks = append(req.Blocks, int32(i))
	}
	c, err := newCluster(&Trace{Requests: []Request{req}, Blocks: len(req.Blocks)}, scenario(t, "store"), dynamoShared[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	c.cal = &calendar{} // without the trace's arrivals
	c.net = newNetwork(c.cal, c.net.capacity)
	return c, &job{req: &req, upTo: prompt, pair: Pair{Prefill: 3}}
}

// What one server has computed another loads, at its own rate, and computes the rest.
func TestStore_AnotherServerLoadsWhatOneComputed(t *testing.T) {
	c, j := storeCluster(t, 8*blockTokens+10)
	first := *j
	first.pair.Prefill, first.upTo = 0, 5*blockTokens+7 // as far as it has come
	c.putInStore(&first)
	if n := c.store.match(j.req.whole()); n != 5 || c.store.pinned != 0 || c.store.private != 0 {
		t.Fatalf("%d blocks in the store, %d pinned, %d reserved", n, c.store.pinned, c.store.private)
	}
	loaded := false
	c.loadStored(j, func() { loaded = true })
	for c.cal.step() && !loaded {
	}
	want := 5 * blockTokens * c.hw.KVBytesPerToken / 12.5e9
	if to := c.prefills[3].cache; !loaded || to.match(j.req.whole()) != 5 || to.pinned != 0 || to.private != 0 || math.Abs(c.cal.now/want-1) > 1e-6 {
		t.Errorf("loaded %v: %d blocks after %.3f s, want 5 after %.3f s", loaded, to.match(j.req.whole()), c.cal.now, want)
	}
	again, before := false, c.cal.now
	c.loadStored(j, func() { again = true })
	if !again || c.cal.now != before {
		t.Error("what is there already is loaded again")
	}
}

// The store's room is bounded: what was used longest ago goes.
func TestStore_IsBounded(t *testing.T) {
	c, j := storeCluster(t, 8*blockTokens)
	c.store = newBlockCache(5*blockTokens, c.blocks, func(int32) {})
	put := func(blocks ...int32) {
		c.putInStore(&job{req: &Request{Prompt: len(blocks) * blockTokens, Blocks: blocks}, upTo: len(blocks) * blockTokens})
	}
	put(0, 1, 2)
	put(5, 6)
	put(0, 1) // used again
	put(7, 4)
	if n := c.store.match(j.req.Blocks); n != 2 || c.store.count > 5 || c.store.match([]int32{7, 4}) != 2 {
		t.Errorf("%d leading blocks of %d", n, c.store.count)
	}
}

// The worked example of Dynamo's documentation (Using HiCache, 1.5.0): four blocks, all of them in the pool, a
// multiplier of 0.5. The server that has two of them itself costs 1.0, the other 2.0.
func TestDynamo_CreditsASharedPoolAsItsDocumentationDoes(t *testing.T) {
	c, j := storeCluster(t, 4*blockTokens)
	c.putInStore(j)
	for _, w := range []struct {
		device int
		want   float64
	}{{2, 1}, {0, 2}} {
		v := c.gateways[0].viewFor(j)
		v.held[3] = w.device
		// One token is always computed, so that the pool's last block lacks one here.
		got := float64(v.Prompt()-v.PrefillHit(3)) - sharedCacheMultiplier*float64(v.StoreHit(3)-v.PrefillHit(3))
		if math.Abs(got/blockTokens-w.want) > 0.001 {
			t.Errorf("%d blocks held: a cost of %.3f blocks, want %.1f", w.device, got/blockTokens, w.want)
		}
	}
	v := c.gateways[0].viewFor(j)
	v.held[5] = 2
	if p := (&dynamoRouter{shared: sharedCacheMultiplier}).pair(v).Prefill; p != 5 {
		t.Errorf("server %d, want that which holds two blocks", p)
	}
}

// A gateway that knows what the store has is faster than one that does not, and than Dynamo's rule for it.
func TestRun_WhatAStoreHasIsWorthKnowing(t *testing.T) {
	s := scenario(t, "store")
	trace := s.workload().trace(s.Name, s.Agents.Seed, 4000)
	ttft := func(p *Policy) float64 {
		o, err := Run(trace, s, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		return o.TTFT.Mean
	}
	seen, unseen, rival := ttft(lateBinding), ttft(unseenStore), min(ttft(dynamoShared[0]), ttft(dynamoShared[1]))
	t.Logf("mean TTFT %.3f s, unseen %.3f s, Dynamo's rule %.3f s", seen, unseen, rival)
	if seen >= unseen || seen >= rival {
		t.Error("it is not")
	}
}
