package decision

import (
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// Records are the decisions of a time, as many of them as a number of bytes holds. Where those are too
// few the oldest keep only what the chosen servers were like, and then are forgotten.
type Records struct {
	keep time.Duration
	most int // bytes

	mu       sync.Mutex     // guards the rest
	kept     []remembered   // the oldest first
	first    int            // how many were forgotten
	cut      int            // of the oldest, of which only the chosen servers are kept
	used     int            // bytes
	newestOf map[string]int // by request id, how many came before it
}

// remembered is a decision, and since when.
type remembered struct {
	Record
	since time.Time
	bytes int
}

// NewRecords remembers decisions for so long, in about so many bytes: the newest in any case.
func NewRecords(keep time.Duration, bytes int) *Records {
	return &Records{keep: keep, most: bytes, newestOf: make(map[string]int)}
}

// Add remembers a decision, whose choices are the record's from now on.
func (d *Records) Add(decision Record) {
	now := time.Now()
	r := remembered{Record: decision, since: now, bytes: decision.bytes()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.newestOf[r.RequestID] = d.first + len(d.kept)
	d.kept = append(d.kept, r)
	d.used += r.bytes
	d.expireLocked(now)
	for last := len(d.kept) - 1; d.used > d.most && d.cut < last; d.cut++ {
		oldest := &d.kept[d.cut]
		d.used -= oldest.bytes
		oldest.KeepOnlyChosen()
		oldest.bytes = oldest.Record.bytes()
		d.used += oldest.bytes
	}
	for d.used > d.most && len(d.kept) > 1 {
		d.forgetOldestLocked()
	}
}

// expireLocked forgets what is older than decisions are kept.
func (d *Records) expireLocked(now time.Time) {
	for len(d.kept) > 0 && now.Sub(d.kept[0].since) > d.keep {
		d.forgetOldestLocked()
	}
}

func (d *Records) forgetOldestLocked() {
	oldest := d.kept[0]
	if d.newestOf[oldest.RequestID] == d.first {
		delete(d.newestOf, oldest.RequestID)
	}
	d.kept[0] = remembered{}
	d.kept = d.kept[1:]
	d.first++
	d.used -= oldest.bytes
	d.cut = max(0, d.cut-1)
}

// Complete writes down what an attempt, counted from 0, of a request that arrived then took, and
// how it ended. It does nothing where the request is forgotten.
func (d *Records) Complete(requestID string, arrived time.Time, attempt int, m Measured, outcome string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := d.findLocked(requestID)
	if found == nil || !found.At.Equal(arrived) || attempt >= len(found.Choices) {
		return
	}
	found.Choices[attempt].Measured, found.Choices[attempt].Outcome = m, outcome
}

// Find returns the newest decision on a request as it is now, false if it is not remembered.
func (d *Records) Find(requestID string) (Record, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(time.Now())
	found := d.findLocked(requestID)
	if found == nil {
		return Record{}, false
	}
	return found.now(), true
}

// Newest returns the last n decisions as they are now, the newest first.
func (d *Records) Newest(n int) []Record { return d.After(time.Time{}, n) }

// After returns the decisions on requests that arrived after a time, likewise: at most so many.
func (d *Records) After(after time.Time, limit int) (newest []Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(time.Now())
	for i := len(d.kept) - 1; i >= 0 && len(newest) < limit; i-- {
		r := &d.kept[i]
		if r.At.After(after) {
			newest = append(newest, r.now())
		}
	}
	return newest
}

// findLocked is the newest decision on a request, nil where none is remembered.
func (d *Records) findLocked(requestID string) *remembered {
	at, found := d.newestOf[requestID]
	if !found {
		return nil
	}
	return &d.kept[at-d.first]
}

// now is a copy: the request may end meanwhile.
func (r *remembered) now() Record {
	now := r.Record
	now.Choices = slices.Clone(now.Choices)
	return now
}

// What a decision takes, beside the names of servers, which the fleet has anyway, and a map's entry.
var (
	recordBytes    = int(reflect.TypeFor[remembered]().Size()) + 64
	choiceBytes    = int(reflect.TypeFor[Choice]().Size())
	candidateBytes = int(reflect.TypeFor[cost.Candidate]().Size())
)

// linkBytes is what the table of links takes for a pair of servers. Decisions of one moment share
// one, and it is counted with each of them.
const linkBytes = 16

// bytes is about how much memory it takes.
func (d *Record) bytes() int {
	n := recordBytes + len(d.RequestID) + len(d.Outcome)
	for i := range d.Choices {
		c := &d.Choices[i]
		prefill, decode := len(c.Candidates.Prefill), len(c.Candidates.Decode)
		n += choiceBytes + len(c.Outcome) + len(c.Mismatch) + candidateBytes*(prefill+decode) + linkBytes*prefill*decode
	}
	return n
}

// KeepOnlyChosen forgets the servers that were not chosen.
func (d *Record) KeepOnlyChosen() {
	for i := range d.Choices {
		c := &d.Choices[i]
		c.Candidates = c.Candidates.Only(c.Chosen.Prefill, c.Chosen.Decode)
	}
}
