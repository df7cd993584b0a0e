package policy

// copyPrefix brings what another prefill server holds of a prompt to the request's own, and then
// does the rest. What was evicted meanwhile is not copied.
func (c *cluster) copyPrefix(j *job, then func()) {
	from, to := j.copyFrom, c.prefills[j.pair.Prefill]
	if from == nil {
		then()
		return
	}
	whole := j.req.whole()
	held, most := to.cache.match(whole), from.cache.match(whole)
	to.cache.hold(whole[:held]) // else the room for the others could be made by evicting these
	if most <= held || !to.cache.reserve(most-held) {
		to.cache.drop(whole[:held])
		then()
		return
	}
	from.cache.hold(whole[:most])
	bytes := float64((most-held)*blockTokens) * c.hw.KVBytesPerToken
	c.net.start(bytes, c.copyRoute(from, to), func() {
		c.tally.recordBytes(bytes, from.rack == to.rack)
		for _, block := range whole[held:most] {
			if to.cache.publish(block) {
				c.events.stored(to.id, block)
			}
		}
		from.cache.drop(whole[:most])
		to.cache.drop(whole[:most])
		then()
	})
}

// copyRoute is the links between two prefill servers: the NIC of the one that sends, and what
// lies between their racks. Nothing else comes in where the copy goes.
func (c *cluster) copyRoute(from, to *prefillServer) []int32 {
	s := c.scenario
	route := []int32{int32(from.id)}
	racks := s.Prefill + s.Decode // number of the first link of racks
	switch {
	case from.rack == to.rack:
	case s.OwnUplink > 0:
		route = append(route, int32(racks+2*s.racks()+from.id))
	default:
		route = append(route, int32(racks+2*from.rack), int32(racks+2*to.rack+1))
	}
	return route
}
