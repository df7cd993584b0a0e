package pd

import (
	"cmp"
	"slices"
)

// line is the order of those who wait: by class, then by tenant in turn, then by
// arrival. It is a value of its own so that the order can be read, and tested, apart
// from the waiting.
type line struct {
	classes []classLine // first served first; only classes in which somebody waits
	size    int
}

// classLine is the waiting of one class. Its first tenant is the next to be served,
// and goes to the end then.
type classLine struct {
	class   int
	tenants []tenantLine // only those who wait
}

type tenantLine struct {
	tenant string
	places []*place // oldest first
}

// push lets a place wait behind those of its tenant.
func (l *line) push(p *place) {
	at, found := slices.BinarySearchFunc(l.classes, p.class, func(c classLine, class int) int { return cmp.Compare(c.class, class) })
	if !found {
		l.classes = slices.Insert(l.classes, at, classLine{class: p.class})
	}
	c := &l.classes[at]
	t := c.tenant(p.tenant)
	if t == nil {
		c.tenants = append(c.tenants, tenantLine{tenant: p.tenant})
		t = &c.tenants[len(c.tenants)-1]
	}
	t.places = append(t.places, p)
	l.size++
}

func (c *classLine) tenant(name string) *tenantLine {
	for i := range c.tenants {
		if c.tenants[i].tenant == name {
			return &c.tenants[i]
		}
	}
	return nil
}

// pop takes the next out of the line, nil if nobody waits.
func (l *line) pop() *place {
	if l.size == 0 {
		return nil
	}
	c := &l.classes[0]
	first := c.tenants[0]
	c.tenants = append(slices.Delete(c.tenants, 0, 1), first)
	p := first.places[0]
	l.remove(p)
	return p
}

// remove takes a place out of the line, and reports whether it stood there.
func (l *line) remove(p *place) bool {
	for i := range l.classes {
		c := &l.classes[i]
		if c.class != p.class {
			continue
		}
		j := slices.IndexFunc(c.tenants, func(t tenantLine) bool { return t.tenant == p.tenant })
		if j < 0 {
			return false
		}
		t := &c.tenants[j]
		k := slices.Index(t.places, p)
		if k < 0 {
			return false
		}
		t.places = slices.Delete(t.places, k, k+1)
		if len(t.places) == 0 {
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

// all yields the places in the line.
func (l *line) all(yield func(*place) bool) {
	for _, c := range l.classes {
		for _, t := range c.tenants {
			for _, p := range t.places {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// victim is who makes room for a newcomer to a line that is full, nil if nobody has
// to: the newest of the last class behind the newcomer's, there of the tenant who
// waits most. Within its own class a newcomer takes a place only of a tenant who
// would still have no less than the newcomer's.
func (l *line) victim(class int, tenant string) *place {
	if l.size == 0 {
		return nil
	}
	last := &l.classes[len(l.classes)-1]
	if last.class < class {
		return nil
	}
	most := &last.tenants[0]
	for i := range last.tenants {
		if len(last.tenants[i].places) >= len(most.places) {
			most = &last.tenants[i]
		}
	}
	if last.class == class {
		own := 0
		if t := last.tenant(tenant); t != nil {
			own = len(t.places)
		}
		if len(most.places)-1 < own+1 {
			return nil
		}
	}
	return most.places[len(most.places)-1]
}

// ahead is how many would be served before a newcomer, if nobody else came.
func (l *line) ahead(class int, tenant string) (n int) {
	for i := range l.classes {
		c := &l.classes[i]
		if c.class > class {
			break
		}
		own := 0
		if t := c.tenant(tenant); t != nil && c.class == class {
			own = len(t.places)
		}
		for _, t := range c.tenants {
			switch {
			case c.class < class:
				n += len(t.places)
			case t.tenant == tenant:
				n += own
			default:
				n += min(len(t.places), own+1)
			}
		}
	}
	return n
}
