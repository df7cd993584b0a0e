package policy

// calendar holds what is to happen, in order of time and, at one time, of entry.
type calendar struct {
	now     float64 // seconds of virtual time
	sorted  []entry // entered in order of time, as arrivals are
	first   int     // of sorted that is to happen
	entries []entry // the others: binary heap, the earliest first
	count   uint64
}

type entry struct {
	at    float64
	order uint64
	do    func()
}

func (e *entry) before(o *entry) bool {
	return e.at < o.at || (e.at == o.at && e.order < o.order)
}

// at enters what happens at a time; a time that has passed is now.
func (c *calendar) at(when float64, do func()) {
	c.count++
	e := entry{at: max(when, c.now), order: c.count, do: do}
	if n := len(c.sorted); n == c.first || c.sorted[n-1].at <= e.at {
		c.sorted = append(c.sorted, e)
		return
	}
	c.entries = append(c.entries, e)
	for i := len(c.entries) - 1; i > 0; {
		parent := (i - 1) / 2
		if c.entries[parent].before(&c.entries[i]) {
			return
		}
		c.entries[parent], c.entries[i] = c.entries[i], c.entries[parent]
		i = parent
	}
}

// after enters what happens seconds from now.
func (c *calendar) after(seconds float64, do func()) { c.at(c.now+seconds, do) }

// isSortedNext says whether the next thing is of sorted.
func (c *calendar) isSortedNext() bool {
	return c.first < len(c.sorted) && (len(c.entries) == 0 || c.sorted[c.first].before(&c.entries[0]))
}

// next is when the next thing happens; now if there is none.
func (c *calendar) next() float64 {
	switch {
	case c.isSortedNext():
		return c.sorted[c.first].at
	case len(c.entries) == 0:
		return c.now
	}
	return c.entries[0].at
}

// step does what is next and reports whether there was anything.
func (c *calendar) step() bool {
	var next entry
	switch {
	case c.isSortedNext():
		next = c.sorted[c.first]
		c.sorted[c.first].do = nil // for the collector
		if c.first++; c.first == len(c.sorted) {
			c.sorted, c.first = c.sorted[:0], 0
		}
	case len(c.entries) == 0:
		return false
	default:
		next = c.takeEarliest()
	}
	c.now = next.at
	next.do()
	return true
}

// takeEarliest takes the first of the heap out.
func (c *calendar) takeEarliest() entry {
	next := c.entries[0]
	last := len(c.entries) - 1
	c.entries[0] = c.entries[last]
	c.entries[last].do = nil // for the collector
	c.entries = c.entries[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && c.entries[child+1].before(&c.entries[child]) {
			child++
		}
		if c.entries[i].before(&c.entries[child]) {
			break
		}
		c.entries[i], c.entries[child] = c.entries[child], c.entries[i]
		i = child
	}
	return next
}
