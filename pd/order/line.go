package order

import (
	"cmp"
	"slices"
)

// line is the waiting requests of one tenant in one class, those who are late apart.
type line struct {
	class   int
	late    bool
	tenant  string
	served  float64   // seconds of prefill that it was given while it waited
	waiting []*Ticket // in order of rank
}

// lines are in the order of service: class, in a class those who are late last, and then
// who was served least. A tenant takes turns by the work of its requests and not by their
// number.
type lines []*line

// find returns the line of a ticket and where it stands there, or would; a nil line is
// one that nobody waits in.
func (ls lines) find(t *Ticket) (l *line, at int, waits bool) {
	i := slices.IndexFunc(ls, func(l *line) bool { return l.class == t.Class && l.late == t.late && l.tenant == t.Tenant })
	if i < 0 {
		return nil, 0, false
	}
	l = ls[i]
	at, _ = slices.BinarySearchFunc(l.waiting, t, byRank)
	return l, at, at < len(l.waiting) && l.waiting[at] == t
}

// add lets a ticket wait. A tenant that comes anew is not owed what it did not ask for:
// it begins with as much as the one beside it who was served least.
func (ls *lines) add(t *Ticket) {
	l, at, _ := ls.find(t)
	if l == nil {
		l = &line{class: t.Class, late: t.late, tenant: t.Tenant}
		if i := slices.IndexFunc(*ls, func(other *line) bool { return other.class == t.Class && other.late == t.late }); i >= 0 {
			l.served = (*ls)[i].served // they are sorted
		}
		*ls = append(*ls, l)
		ls.sort()
	}
	l.waiting = slices.Insert(l.waiting, at, t)
}

// remove takes a ticket out, false if it does not wait.
func (ls *lines) remove(t *Ticket) bool {
	l, at, waits := ls.find(t)
	if !waits {
		return false
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	if len(l.waiting) == 0 {
		*ls = slices.DeleteFunc(*ls, func(other *line) bool { return other == l })
	}
	return true
}

// move gives a ticket that waits another rank. It stays in its line, which remembers what
// the tenant was given, also where nobody else waits there.
func (ls lines) move(t *Ticket, rank float64) {
	l, at, waits := ls.find(t)
	if !waits {
		return
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	t.rank = rank
	_, at, _ = ls.find(t)
	l.waiting = slices.Insert(l.waiting, at, t)
}

// serve counts work that a tenant was given. Its line is there: the ticket waits.
func (ls lines) serve(t *Ticket, seconds float64) {
	if l, _, _ := ls.find(t); l != nil {
		l.served += seconds
	}
	ls.sort()
}

func (ls lines) sort() {
	slices.SortFunc(ls, func(a, b *line) int {
		return cmp.Or(cmp.Compare(a.class, b.class), lastIf(a.late, b.late), cmp.Compare(a.served, b.served), cmp.Compare(a.tenant, b.tenant))
	})
}

// byRank compares ranks, and of equal ones the IDs, so that each has one place.
func byRank(a, b *Ticket) int {
	switch {
	case a.rank < b.rank || (a.rank == b.rank && a.ID < b.ID):
		return -1
	case a == b:
		return 0
	}
	return 1
}

// lastIf compares so that what is true comes last.
func lastIf(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
