package policy

import "github.com/tandem-gateway/tandem/pd/cost"

// kvFetch is what a prefill server is to have of a prompt from a decode server before it computes the rest. The zero value:
// nothing.
type kvFetch struct {
	from    *decodeServer
	tokens  int
	seconds float64 // predicted
}

// fetchPrefix brings what a decode server holds of a prompt to the request's prefill server, and then does the rest: by
// a request for one token there, which waits for the step under way and ends with the next one, and one here, which an engine
// looks at when a step leaves tokens for those that wait, and which ends with a step of its own. What was evicted meanwhile is
// not fetched.
func (c *cluster) fetchPrefix(j *job, then func()) {
	from, to, most := j.fetch.from, c.prefills[j.pair.Prefill], j.fetch.tokens/blockTokens
	j.fetch = kvFetch{}
	if from == nil {
		then()
		return
	}
	kept := j.req.whole()[:min(most, len(j.req.whole()))]
	kept = kept[:from.cache.match(kept)]
	from.cache.hold(kept)
	answers := from.group.stepEnds() + from.speed*c.hw.step(len(from.batch)+1, from.context+len(kept)*blockTokens)
	c.cal.at(answers+c.scenario.handOff()+c.scenario.RoundTrip, func() {
		to.reads = append(to.reads, func() { c.readKept(from, to, kept, then) })
		if !to.busy || !to.full {
			to.read()
		}
	})
}

// readKept moves blocks that a decode server keeps for it to a prefill server, as far as that lacks them.
func (c *cluster) readKept(from *decodeServer, to *prefillServer, kept []int32, then func()) {
	c.bring(to, kept, len(kept), c.fetchRoute(from, to), func() {}, func(bytes float64) {
		if bytes > 0 {
			c.tally.recordBytes(bytes, from.rack == to.rack)
		}
		from.cache.drop(kept)
		from.admit() // who waited for that room
		c.cal.after(c.hw.PrefillStep, then)
	})
}

// fetchRoute is the links from a decode to a prefill server: the NIC of the one that sends, as if it could not receive
// meanwhile, and what lies between their racks. Nothing else comes in where it goes.
func (c *cluster) fetchRoute(from *decodeServer, to *prefillServer) []int32 {
	return append([]int32{int32(c.scenario.Prefill + from.id)}, c.scenario.linksBetween(from.rack, to.rack, to.id)...)
}

// offerFetches lets prefill servers fetch what decode servers hold of a request, which has not begun.
func (f *fleet) offerFetches(v *View, j *job) {
	for p := range f.field.Prefill {
		f.field.Prefill[p].Remote = cost.Remote{}
	}
	if f.fetches && j.pieces == 0 {
		links := f.links
		if v.scenario().Overlap { // what leaves during a prefill shows nothing of how fast they are
			links = f.told
		}
		f.model.OfferFetches(&f.field, j.req.Prompt, j.req.Prompt, links, func(int, int) bool { return true })
	}
}

// takeFetch says what a request fetches that goes to a prefill server, which is as it will be then for those who ask now.
func (f *fleet) takeFetch(v *View, j *job) {
	j.fetch = kvFetch{}
	c := &f.field.Prefill[j.pair.Prefill]
	if takes, _ := f.model.Fetches(c, j.req.Prompt); takes > 0 {
		j.fetch = kvFetch{from: v.gateway.cluster.decodes[serverNumber(c.Remote.Server)], tokens: c.Remote.Tokens, seconds: takes.Seconds()}
		*c = c.AfterFetch()
	}
}
