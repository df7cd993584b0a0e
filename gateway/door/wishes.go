package door

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// The headers in which a request says what it wishes for.
const (
	PriorityHeader = "X-Tandem-Priority"    // name of a class
	DeadlineHeader = "X-Tandem-Deadline-Ms" // until the first content, from the request's arrival
	TTFTHeader     = "X-Tandem-Ttft-Slo-Ms" // objectives
	ITLHeader      = "X-Tandem-Itl-Slo-Ms"
)

// Wishes are those headers as they came, "" where absent.
type Wishes struct{ Priority, Deadline, TTFT, ITL string }

// Granted is what a request gets of its wishes.
type Granted struct {
	Class     int
	Deadline  time.Time     // zero: none
	TTFT, ITL time.Duration // its own objectives, 0 where it has those of its model
}

// WishError is a wish that cannot be read.
type WishError struct{ Header, Want string }

func (e *WishError) Error() string { return fmt.Sprintf("The header %s must be %s.", e.Header, e.Want) }

// Grant gives a request what its key allows. Everybody may be served later, or have to
// be served sooner, than their key says: neither is at the cost of others. A wish that
// is not allowed is not heard; one that cannot be read is an error (*WishError).
func (d *Door) Grant(k *Key, w Wishes, now time.Time) (Granted, error) {
	g := Granted{Class: k.Class, TTFT: k.TTFT, ITL: k.ITL}
	if w.Priority != "" {
		class := d.classOf(w.Priority)
		if class < 0 {
			return Granted{}, &WishError{PriorityHeader, fmt.Sprintf("one of %q", d.cfg.Classes)}
		}
		if class > k.Class || k.MaySet.Priority {
			g.Class = class
		}
	}
	deadline, err := milliseconds(DeadlineHeader, w.Deadline)
	if err != nil {
		return Granted{}, err
	}
	if deadline == 0 || k.Deadline > 0 && deadline > k.Deadline && !k.MaySet.Deadline {
		deadline = k.Deadline
	}
	if deadline > 0 {
		g.Deadline = now.Add(deadline)
	}
	if !k.MaySet.Objectives {
		return g, nil
	}
	ttft, err := milliseconds(TTFTHeader, w.TTFT)
	if err != nil {
		return Granted{}, err
	}
	itl, err := milliseconds(ITLHeader, w.ITL)
	if err != nil {
		return Granted{}, err
	}
	g.TTFT, g.ITL = cmp.Or(ttft, g.TTFT), cmp.Or(itl, g.ITL)
	return g, nil
}

// maxWish bounds a time that a request wishes for.
const maxWish = 24 * time.Hour

// milliseconds reads a time, 0 where the header is absent.
func milliseconds(header, value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 || n > maxWish.Milliseconds() {
		return 0, &WishError{header, "a whole number of milliseconds, from 1 to those of a day"}
	}
	return time.Duration(n) * time.Millisecond, nil
}
