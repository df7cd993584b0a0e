package policy

import "errors"

// Store is a store of KV beside the prefill servers, which all of them share: Mooncake's under vLLM's
// MooncakeStoreConnector or SGLang's HiCache. What one computes it puts there, and what a server lacks
// of a prompt it loads from there if the store has it, whoever chose the server, before the
// prompt gets its place in a step. Putting costs nothing here, and a server loads one prompt after
// the other at its own rate. Gateways know what is there: Dynamo by the store's object events,
// Tandem by those of the engines.
type Store struct {
	Tokens         int     `yaml:"tokens"`           // that it has room for; those used longest ago go
	BytesPerSecond float64 `yaml:"bytes_per_second"` // that one server loads
}

func (s *Store) check() error {
	if s.Tokens < blockTokens || s.BytesPerSecond <= 0 {
		return errors.New("store: want tokens and bytes_per_second")
	}
	return nil
}

// putInStore leaves what a server has computed of a prompt in the store.
func (c *cluster) putInStore(j *job) {
	if c.store == nil {
		return
	}
	whole := j.req.whole()
	whole = whole[:min(len(whole), j.upTo/blockTokens)]
	held := whole[:0:0]
	for _, block := range whole {
		if c.store.match([]int32{block}) == 1 {
			c.store.hold([]int32{block})
		} else if !c.store.reserve(1) {
			break
		} else {
			c.store.publish(block)
		}
		held = append(held, block)
	}
	c.store.drop(held)
}

// loadStored brings what the store has of a prompt, and the request's server lacks, to that server, and
// then does the rest.
func (c *cluster) loadStored(j *job, then func()) {
	if c.store == nil || j.pieces > 0 {
		then()
		return
	}
	to, whole := c.prefills[j.pair.Prefill], j.req.whole()
	c.bring(to, whole, c.store.match(whole), []int32{c.storeLinks + int32(to.id)}, func() {}, func(float64) { then() })
}

// StoreHit is how many leading tokens of the request a prefill server has if it loads what the store has of
// it; without a store, or if that has no more, those that it holds.
func (v *View) StoreHit(p int) int {
	hit, store := v.PrefillHit(p), v.gateway.cluster.store
	if store == nil {
		return hit
	}
	if v.storedOf != v.job || v.storedAt != v.now {
		v.storedOf, v.storedAt, v.stored = v.job, v.now, store.match(v.job.req.whole())
	}
	return max(hit, min(v.stored*blockTokens, v.Prompt()-1))
}
