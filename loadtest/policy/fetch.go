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
		to.reads = append(to.reads, func() { c.readKept(j, from, to, kept, then) })
		if !to.busy || !to.full {
			to.read()
		}
	})
}

// readKept moves blocks that a decode server keeps for it to a prefill server, as far as that lacks them.
func (c *cluster) readKept(j *job, from *decodeServer, to *prefillServer, kept []int32, then func()) {
	held := to.cache.match(kept)
	to.cache.hold(kept[:held]) // else the room for the others could be made by evicting these
	end := func(blocks []int32) {
		to.cache.drop(blocks)
		from.cache.drop(kept)
		from.admit() // who waited for that room
		c.cal.after(c.hw.PrefillStep, then)
	}
	if held == len(kept) || !to.cache.reserve(len(kept)-held) {
		end(kept[:held])
		return
	}
	bytes := float64((len(kept)-held)*blockTokens) * c.hw.KVBytesPerToken
	c.net.start(bytes, c.fetchRoute(from, to), func() {
		c.tally.recordBytes(bytes, from.rack == to.rack)
		for _, block := range kept[held:] {
			if to.cache.publish(block) {
				c.events.stored(to.id, block)
			}
		}
		end(kept)
	})
}

// fetchRoute is the links from a decode to a prefill server: the NIC of the one that sends, as if it could not receive
// meanwhile, and what lies between their racks. Nothing else comes in where it goes.
func (c *cluster) fetchRoute(from *decodeServer, to *prefillServer) []int32 {
	s := c.scenario
	racks := s.Prefill + s.Decode // number of the first link of racks
	route := []int32{int32(s.Prefill + from.id)}
	switch {
	case from.rack == to.rack:
	case s.OwnUplink > 0:
		route = append(route, int32(racks+2*s.racks()+to.id))
	default:
		route = append(route, int32(racks+2*from.rack), int32(racks+2*to.rack+1))
	}
	return route
}

// offerFetches lets prefill servers fetch what decode servers hold of a request, which has not begun.
func (f *fleet) offerFetches(v *View, j *job) {
	for p := range f.field.Prefill {
		f.field.Prefill[p].Remote = cost.Remote{}
	}
	if f.fetches && j.pieces == 0 {
		speeds := f.links.Speeds()
		if v.scenario().Overlap { // what leaves during a prefill shows nothing of how fast links are
			speeds = f.told
		}
		f.model.OfferFetches(&f.field, j.req.Prompt, j.req.Prompt, &speeds, func(int, int) bool { return true })
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
