package order

import (
	"cmp"
	"slices"
)

// line is the waiting requests of one tenant in one class, those who are late apart.
type line struct {
	lineKey
	served  float64   // seconds of prefill that it was given while it waited
	waiting []*Ticket // in order of rank
}

// lineKey says whose a line is.
type lineKey struct {
	class  int
	late   bool
	tenant string
}

func (t *Ticket) line() lineKey { return lineKey{t.Class, t.late, t.Tenant} }

// lines holds all lines in which a request waits. A tenant takes turns by the work of its
// requests and not by their number. There may be as many lines as requests, so that no
// change of one looks at the others.
type lines struct {
	// sorted is the order of service: class, in a class those who are late last, and then
	// the tenant that was served least.
	sorted []*line
	of     map[lineKey]*line
}

// find returns the line of a ticket and where it stands there, or would; a nil line is
// one that no request waits in.
func (ls *lines) find(t *Ticket) (l *line, at int, waits bool) {
	if l = ls.of[t.line()]; l == nil {
		return nil, 0, false
	}
	at, _ = slices.BinarySearchFunc(l.waiting, t, byRank)
	return l, at, at < len(l.waiting) && l.waiting[at] == t
}

// add lets a ticket wait. A tenant that comes anew is not owed what it did not ask for:
// it begins with as much as the one beside it who was served least.
func (ls *lines) add(t *Ticket) {
	l, at, _ := ls.find(t)
	if l == nil {
		l = &line{lineKey: t.line()}
		if first := ls.group(l); first < len(ls.sorted) && ls.sorted[first].isBeside(l) {
			l.served = ls.sorted[first].served
		}
		if ls.of == nil {
			ls.of = make(map[lineKey]*line)
		}
		ls.of[l.lineKey] = l
		ls.insert(l)
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
		delete(ls.of, l.lineKey)
		ls.takeOut(l)
	}
	return true
}

// move gives a ticket that waits another rank. It stays in its line, which remembers what
// the tenant was given, also where no other request waits there.
func (ls *lines) move(t *Ticket, rank float64) {
	l, at, waits := ls.find(t)
	if !waits {
		return
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	t.rank = rank
	_, at, _ = ls.find(t)
	l.waiting = slices.Insert(l.waiting, at, t)
}

// setServed says what the tenant of a ticket that waits was given, in seconds of prefill.
func (ls *lines) setServed(t *Ticket, seconds float64) {
	if l, _, _ := ls.find(t); l != nil {
		ls.takeOut(l)
		l.served = seconds
		ls.insert(l)
	}
}

// insert puts a line where it stands in the order of service.
func (ls *lines) insert(l *line) {
	at, _ := slices.BinarySearchFunc(ls.sorted, l, byTurn)
	ls.sorted = slices.Insert(ls.sorted, at, l)
}

// takeOut takes a line out of the order of service.
func (ls *lines) takeOut(l *line) {
	if at, found := slices.BinarySearchFunc(ls.sorted, l, byTurn); found {
		ls.sorted = slices.Delete(ls.sorted, at, at+1)
	}
}

// group is where the lines beside one begin in the order of service.
func (ls *lines) group(l *line) int {
	at, _ := slices.BinarySearchFunc(ls.sorted, l, byGroup)
	return at
}

// isBeside reports whether two lines are of one class and both late, or not late: their
// tenants take turns.
func (l *line) isBeside(other *line) bool { return byGroup(l, other) == 0 }

func byGroup(a, b *line) int {
	return cmp.Or(cmp.Compare(a.class, b.class), lastIf(a.late, b.late))
}

func byTurn(a, b *line) int {
	return cmp.Or(byGroup(a, b), cmp.Compare(a.served, b.served), cmp.Compare(a.tenant, b.tenant))
}

// work is the seconds of prefill that wait in a line.
func (l *line) work() (seconds float64) {
	for _, w := range l.waiting {
		seconds += w.shortest
	}
	return seconds
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
