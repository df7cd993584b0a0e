package drainsync

import "time"

const (
	refresh = time.Hour      // after which a gateway that has a drained server says so again
	expiry  = 24 * time.Hour // after which what was said of a server is forgotten: that it drains where no gateway has it
)

// view is what a gateway sees in one round.
type view struct {
	shared    map[string]record
	drained   map[string]bool   // as this gateway knows
	unwritten map[string]bool   // as an operator said here since
	newest    map[string]record // what Redis had of each when it was last looked at
	present   map[string]bool   // servers that this gateway has
}

// change is what is written of one server: a record, or nothing where it is forgotten.
type change struct {
	server string
	record *record
	force  bool // whatever stands there now
}

func (c change) text() string {
	if c.record == nil {
		return ""
	}
	return c.record.String()
}

// changes are what this gateway writes: what an operator said here; what Redis has lost, or has as it
// was before; and of what is old that it still holds, or that it is forgotten.
func (v view) changes(now time.Time) (all []change) {
	now = now.Truncate(time.Second) // as it is written
	for id, drain := range v.unwritten {
		all = append(all, change{id, &record{drain, v.after(id, now)}, true})
	}
	for id := range v.drained {
		if _, known := v.shared[id]; !known && v.present[id] && !v.saidHere(id) {
			all = append(all, change{server: id, record: &record{true, now}})
		}
	}
	for id, r := range v.shared {
		age := now.Sub(r.at)
		switch {
		case v.saidHere(id):
		case v.isSetBack(id):
			newest := v.newest[id]
			all = append(all, change{server: id, record: &newest})
		case r.drain && v.present[id] && age > refresh:
			all = append(all, change{server: id, record: &record{true, now}})
		case !(r.drain && v.present[id]) && age > expiry:
			all = append(all, change{server: id})
		}
	}
	return all
}

func (v view) saidHere(id string) bool {
	_, said := v.unwritten[id]
	return said
}

// isSetBack reports whether Redis has of a server the opposite of what it had, and from before that: it came back
// with old data, or failed over to a replica that lacks the newest.
func (v view) isSetBack(id string) bool {
	r, newest := v.shared[id], v.newest[id]
	return r.drain != newest.drain && r.at.Before(newest.at)
}

// after is now, but later than all that was said of a server, by whatever clock.
func (v view) after(id string, now time.Time) time.Time {
	for _, r := range []record{v.shared[id], v.newest[id]} {
		if !now.After(r.at) {
			now = r.at.Add(time.Second)
		}
	}
	return now
}
