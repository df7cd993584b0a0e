package queue

import (
	"cmp"
	"slices"
)

// fairQueue is the order of the waiting requests: by class, then by tenant in turn, then by
// arrival. It is a value of its own so that the order can be read, and tested, apart
// from the waiting.
type fairQueue struct {
	classes []classQueue // first served first; only classes in which a request waits
	size    int
}

// classQueue is the waiting of one class. Its first tenant is the next to be served,
// and goes to the end then.
type classQueue struct {
	class   int
	tenants []tenantQueue // only those with waiting requests
}

type tenantQueue struct {
	tenant  string
	entries []*Entry // oldest first
}

// push lets an entry wait behind those of its tenant.
func (l *fairQueue) push(p *Entry) {
	at, found := slices.BinarySearchFunc(l.classes, p.class, func(c classQueue, class int) int { return cmp.Compare(c.class, class) })
	if !found {
		l.classes = slices.Insert(l.classes, at, classQueue{class: p.class})
	}
	c := &l.classes[at]
	t := c.tenant(p.tenant)
	if t == nil {
		c.tenants = append(c.tenants, tenantQueue{tenant: p.tenant})
		t = &c.tenants[len(c.tenants)-1]
	}
	t.entries = append(t.entries, p)
	l.size++
}

func (c *classQueue) tenant(name string) *tenantQueue {
	for i := range c.tenants {
		if c.tenants[i].tenant == name {
			return &c.tenants[i]
		}
	}
	return nil
}

// pop takes the next out of the queue, nil if none waits.
func (l *fairQueue) pop() *Entry {
	if l.size == 0 {
		return nil
	}
	c := &l.classes[0]
	first := c.tenants[0]
	c.tenants = append(slices.Delete(c.tenants, 0, 1), first)
	p := first.entries[0]
	l.remove(p)
	return p
}

// remove takes an entry out of the queue, and reports whether it stood there.
func (l *fairQueue) remove(p *Entry) bool {
	for i := range l.classes {
		c := &l.classes[i]
		if c.class != p.class {
			continue
		}
		j := slices.IndexFunc(c.tenants, func(t tenantQueue) bool { return t.tenant == p.tenant })
		if j < 0 {
			return false
		}
		t := &c.tenants[j]
		k := slices.Index(t.entries, p)
		if k < 0 {
			return false
		}
		t.entries = slices.Delete(t.entries, k, k+1)
		if len(t.entries) == 0 {
			c.tenants = slices.Delete(c.tenants, j, j+1)
		}
		if len(c.tenants) == 0 {
			l.classes = slices.Delete(l.classes, i, i+1)
		}
		l.size--
		return true
	}
	return false
}

// all yields the entries of the queue.
func (l *fairQueue) all(yield func(*Entry) bool) {
	for _, c := range l.classes {
		for _, t := range c.tenants {
			for _, p := range t.entries {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// displaceable is what makes room for a newcomer to a queue that is full, nil if nothing has
// to: the newest of the last class behind the newcomer's, there of the tenant that
// waits most. Within its own class a newcomer takes a place only of a tenant that
// would still have no less than the newcomer's.
func (l *fairQueue) displaceable(class int, tenant string) *Entry {
	if l.size == 0 {
		return nil
	}
	last := &l.classes[len(l.classes)-1]
	if last.class < class {
		return nil
	}
	most := &last.tenants[0]
	for i := range last.tenants {
		if len(last.tenants[i].entries) >= len(most.entries) {
			most = &last.tenants[i]
		}
	}
	if last.class == class {
		own := 0
		if t := last.tenant(tenant); t != nil {
			own = len(t.entries)
		}
		if len(most.entries)-1 < own+1 {
			return nil
		}
	}
	return most.entries[len(most.entries)-1]
}

// ahead is how many would be served before a newcomer, if no other came.
func (l *fairQueue) ahead(class int, tenant string) (n int) {
	for i := range l.classes {
		c := &l.classes[i]
		if c.class > class {
			break
		}
		own := 0
		if t := c.tenant(tenant); t != nil && c.class == class {
			own = len(t.entries)
		}
		for _, t := range c.tenants {
			switch {
			case c.class < class:
				n += len(t.entries)
			case t.tenant == tenant:
				n += own
			default:
				n += min(len(t.entries), own+1)
			}
		}
	}
	return n
}
