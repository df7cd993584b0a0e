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
	kept := whole[:from.cache.match(whole)]
	c.bring(to, whole, len(kept), c.copyRoute(from, to), func() { from.cache.hold(kept) }, func(bytes float64) {
		if bytes > 0 {
			c.tally.recordBytes(bytes, from.rack == to.rack)
			from.cache.drop(kept)
		}
		then()
	})
}

// bring moves so many leading blocks of a prompt over a route to a prefill server, as far as it lacks them and has room for
// all, and then does the rest: with the bytes that were moved, at once where there are none. begin is called before
// they move.
func (c *cluster) bring(to *prefillServer, whole []int32, blocks int, route []int32, begin func(), then func(bytes float64)) {
	held := to.cache.match(whole)
	to.cache.hold(whole[:held]) // else the room for the others could be made by evicting these
	if blocks <= held || !to.cache.reserve(blocks-held) {
		to.cache.drop(whole[:held])
		then(0)
		return
	}
	begin()
	bytes := float64((blocks-held)*blockTokens) * c.hw.KVBytesPerToken
	c.net.start(bytes, route, func() {
		for _, block := range whole[held:blocks] {
			if to.cache.publish(block) {
				c.events.stored(to.id, block)
			}
		}
		to.cache.drop(whole[:blocks])
		then(bytes)
	})
}

// copyRoute is the links between two prefill servers: the NIC of the one that sends, and what
// lies between their racks. Nothing else comes in where the copy goes.
func (c *cluster) copyRoute(from, to *prefillServer) []int32 {
	return append([]int32{int32(from.id)}, c.scenario.linksBetween(from.rack, to.rack, from.id)...)
}

// linksBetween are the links that lie between the NICs of servers in two racks: the own link of the prefill server among
// them, where these have some, or the uplink of the one rack and the downlink of the other; none within a rack.
func (s *Scenario) linksBetween(from, to, prefill int) []int32 {
	racks := s.Prefill + s.Decode // number of the first link of racks
	switch {
	case from == to:
		return nil
	case s.OwnUplink > 0:
		return []int32{int32(racks + 2*s.racks() + prefill)}
	}
	return []int32{int32(racks + 2*from), int32(racks + 2*to + 1)}
}
