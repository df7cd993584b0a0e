package policy

// network moves KV as flows that share links max-min fairly, as long-lived
// transfers over RDMA or TCP about do: no flow can get more without taking from
// one that has no more than it.
type network struct {
	cal        *calendar
	capacity   []float64 // bytes per second of each link
	flows      []*flow
	advancedAt float64 // until when the flows' remaining bytes are true
	version    int     // of the rates; an older completion is void
	dirty      bool    // rates are to be computed at the end of this instant

	left  []float64 // scratch of share: capacity left and unfixed flows, by link
	count []int
	used  []int32
}

// flow is one transfer.
type flow struct {
	links []int32 // that it crosses
	left  float64 // bytes
	rate  float64 // bytes per second
	fixed bool
	done  func()
}

func newNetwork(cal *calendar, capacity []float64) *network {
	return &network{cal: cal, capacity: capacity, left: make([]float64, len(capacity)), count: make([]int, len(capacity))}
}

// start begins a transfer over links; done is called when its last byte is there.
func (n *network) start(bytes float64, links []int32, done func()) {
	n.advance()
	n.flows = append(n.flows, &flow{links: links, left: bytes, done: done})
	n.change()
}

// setCapacity changes a link.
func (n *network) setCapacity(link int32, bytesPerSecond float64) {
	n.advance()
	n.capacity[link] = bytesPerSecond
	n.change()
}

// change lets all that happens at one instant share one computation.
func (n *network) change() {
	if n.dirty {
		return
	}
	n.dirty = true
	n.cal.after(0, func() {
		n.dirty = false
		n.share()
		n.plan()
	})
}

// advance moves the bytes that have passed since it was last called.
func (n *network) advance() {
	passed := n.cal.now - n.advancedAt
	n.advancedAt = n.cal.now
	if passed <= 0 {
		return
	}
	for _, f := range n.flows {
		f.left -= f.rate * passed
	}
}

// share sets the max-min fair rates by filling: the link that gives its flows
// least fixes them, its capacity leaves the other links, and so on.
func (n *network) share() {
	n.used = n.used[:0]
	for _, f := range n.flows {
		f.fixed = false
		for _, l := range f.links {
			if n.count[l] == 0 {
				n.used = append(n.used, l)
				n.left[l] = n.capacity[l]
			}
			n.count[l]++
		}
	}
	for open := len(n.flows); open > 0; {
		tight, least := int32(-1), 0.0
		for _, l := range n.used {
			if n.count[l] == 0 {
				continue
			}
			if fair := n.left[l] / float64(n.count[l]); tight < 0 || fair < least {
				tight, least = l, fair
			}
		}
		for _, f := range n.flows {
			if f.fixed || !f.crosses(tight) {
				continue
			}
			f.fixed, f.rate = true, least
			open--
			for _, l := range f.links {
				n.left[l] = max(0, n.left[l]-least)
				n.count[l]--
			}
		}
	}
}

func (f *flow) crosses(link int32) bool {
	for _, l := range f.links {
		if l == link {
			return true
		}
	}
	return false
}

// plan enters the next completion.
func (n *network) plan() {
	n.version++
	if len(n.flows) == 0 {
		return
	}
	next := -1.0
	for _, f := range n.flows {
		if t := f.left / f.rate; next < 0 || t < next {
			next = t
		}
	}
	version := n.version
	n.cal.after(max(0, next), func() {
		if version == n.version {
			n.complete()
		}
	})
}

// complete ends the flows without bytes; a millionth of a second's worth of bytes
// is no bytes, since the times are rounded.
func (n *network) complete() {
	n.advance()
	var done []*flow
	kept := n.flows[:0]
	for _, f := range n.flows {
		if f.left <= f.rate*1e-6 {
			done = append(done, f)
		} else {
			kept = append(kept, f)
		}
	}
	clear(n.flows[len(kept):])
	n.flows = kept
	n.change()
	for _, f := range done {
		f.done()
	}
}
