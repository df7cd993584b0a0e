package policy

import "testing"

// A fetch brings what decode holds to prefill, after the steps of both, and leaves it with decode; what decode has lost
// meanwhile is computed.
func TestFetchPrefix(t *testing.T) {
	for name, held := range map[string]int{"all": 4, "what is left of it": 2, "nothing": 0} {
		t.Run(name, func(t *testing.T) {
			c, err := newCluster(readShort(t), scenario(t, "B"), pieces, 1)
			if err != nil {
				t.Fatal(err)
			}
			c.cal = &calendar{} // without the trace's arrivals
			c.net = newNetwork(c.cal, c.net.capacity)
			from, to, blocks := c.decodes[3], c.prefills[1], []int32{0, 1, 2, 3}
			if !from.cache.reserve(held) {
				t.Fatal("no room")
			}
			for _, b := range blocks[:held] {
				from.cache.publish(b)
			}
			from.cache.drop(blocks[:held])
			prompt := 4 * blockTokens
			j := &job{req: &Request{Prompt: prompt, Blocks: blocks}, upTo: prompt, pair: Pair{Prefill: 1}, fetch: kvFetch{from: from, tokens: prompt}}
			came := -1.0
			c.fetchPrefix(j, func() { came = c.cal.now })
			for c.cal.step() {
			}
			if got := to.cache.match(blocks); got != held || from.cache.match(blocks) != held {
				t.Errorf("%d blocks came, of %d", got, held)
			}
			least := c.hw.step(1, held*blockTokens) + c.scenario.handOff() + c.scenario.RoundTrip
			least += float64(held*blockTokens)*c.hw.KVBytesPerToken/c.hw.NIC + c.hw.PrefillStep
			if came < least-1e-9 || came > 8*least {
				t.Errorf("it took %.4f s, want %.4f and no more than a slow uplink", came, least)
			}
			if got := to.cache.used() + from.cache.used(); got != 0 {
				t.Errorf("%d tokens are held still", got)
			}
		})
	}
}
