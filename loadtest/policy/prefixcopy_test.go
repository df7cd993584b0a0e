package policy

import "testing"

// Room for a copied prefix is never made by evicting what the server has of it already, though that
// was used before all else there.
func TestCopyPrefix_KeepsWhatIsThereAlready(t *testing.T) {
	c, err := newCluster(readShort(t), scenario(t, "B"), conductorCopying, 1)
	if err != nil {
		t.Fatal(err)
	}
	from, to := c.prefills[0], c.prefills[1]
	to.cache = newBlockCache(4*blockTokens, c.blocks, func(int32) {})
	publish := func(cache *blockCache, blocks ...int32) {
		if !cache.reserve(len(blocks)) {
			t.Fatal("no room")
		}
		for _, b := range blocks {
			cache.publish(b)
		}
		cache.drop(blocks)
	}
	publish(from.cache, 0, 1, 2, 3)
	publish(to.cache, 0, 1)
	publish(to.cache, 8, 9)
	prompt := 4 * blockTokens
	j := &job{req: &Request{Prompt: prompt, Blocks: []int32{0, 1, 2, 3}}, upTo: prompt, pair: Pair{Prefill: 1}, copyFrom: from}
	copied := false
	c.cal = &calendar{} // without the trace's arrivals
	c.net = newNetwork(c.cal, c.net.capacity)
	c.copyPrefix(j, func() { copied = true })
	for c.cal.step() {
	}
	if got := to.cache.match(j.req.Blocks); !copied || got != 4 {
		t.Errorf("copied %v, %d of 4 blocks are there", copied, got)
	}
}
