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
// a request for one token there, which waits for the step under way and ends with the next one, and one here, which ends with
// a step of its own. What was evicted meanwhile is not fetched.
func (c *cluster) fetchPrefix(j *job, then func()) {
	from, to := j.fetch.from, c.prefills[j.pair.Prefill]
	j.fetch = kvFetch{}
	if from == nil {
		then()
		return
	}
	whole := j.req.whole()
	most := from.cache.match(whole)
	from.cache.hold(whole[:most])
	kept := from.group.stepEnds() + c.hw.step(len(from.batch)+1, from.context)
	c.cal.at(kept+c.scenario.handOff()+c.scenario.RoundTrip, func() {
		held := to.cache.match(whole)
		to.cache.hold(whole[:held]) // else the room for the others could be made by evicting these
		if most <= held || !to.cache.reserve(most-held) {
			to.cache.drop(whole[:held])
			from.cache.drop(whole[:most])
			then()
			return
		}
		bytes := float64((most-held)*blockTokens) * c.hw.KVBytesPerToken
		c.net.start(bytes, c.fetchRoute(from, to), func() {
			c.tally.recordBytes(bytes, from.rack == to.rack)
			for _, block := range whole[held:most] {
				if to.cache.publish(block) {
					c.events.stored(to.id, block)
				}
			}
			from.cache.drop(whole[:most])
			to.cache.drop(whole[:most])
			c.cal.after(c.hw.PrefillStep, then)
		})
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
		f.model.OfferFetches(&f.field, j.req.Prompt, j.req.Prompt, &speeds, func(string, string) bool { return false })
	}
}

// takeFetch says what a request fetches that goes to a prefill server, which is as it will be then for those who ask now.
func (f *fleet) takeFetch(v *View, j *job) {
	j.fetch = kvFetch{}
	c := &f.field.Prefill[j.pair.Prefill]
	if takes, ok := f.model.Fetches(c, j.req.Prompt); ok {
		j.fetch = kvFetch{from: v.gateway.cluster.decodes[serverNumber(c.Remote.Server)], tokens: c.Remote.Tokens, seconds: takes.Seconds()}
		*c = c.AfterFetch()
	}
}
