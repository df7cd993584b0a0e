package decision

import (
	"hash/maphash"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// Records are the decisions of a time, as many of them as a number of bytes holds. Where those are too
// few the oldest keep only what the chosen servers were like, and then are forgotten. Of requests that have ended they
// are packed, since the collector would walk through tens of thousands of them each time.
type Records struct {
	keep time.Duration
	most int // bytes

	held atomic.Int64 // bytes of choices under way

	mu     sync.Mutex        // guards the rest
	origin time.Time         // of the times in kept
	kept   []remembered      // the oldest first
	first  Number            // of the oldest
	cut    int               // of the oldest, which keep the chosen servers alone or are packed
	used   int               // bytes
	whole  map[Number]Record // those that are not packed
	packed pages
	seed   maphash.Seed
}

// Number is that of a decision among all that were ever added, from 1 on; 0 is none.
type Number int

// remembered is a decision, without a pointer. Since when it is one, and how many bytes are counted for it.
type remembered struct {
	since    time.Duration // after the records' origin
	at       place         // where it is packed
	isPacked bool
	bytes    int
	hash     uint64 // of the request's id
}

// NewRecords remembers decisions for so long, in about so many bytes: the newest in any case.
func NewRecords(keep time.Duration, bytes int) *Records {
	return &Records{
		keep: keep, most: bytes, origin: time.Now(), first: 1, whole: make(map[Number]Record), seed: maphash.MakeSeed(),
	}
}

// Hold counts the servers of a choice whose request is under way, and returns for how many bytes: as many as LetGo gives
// back. Where those under way would take more than the decisions that are remembered may, the choice keeps the chosen
// servers alone.
func (d *Records) Hold(c *Choice) (bytes int) {
	bytes = c.serverBytes()
	if d.held.Add(int64(bytes)) <= int64(d.most) {
		return bytes
	}
	d.held.Add(-int64(bytes))
	c.KeepOnlyChosen()
	return 0
}

// LetGo gives back what Hold counted.
func (d *Records) LetGo(bytes int) { d.held.Add(-int64(bytes)) }

// Add remembers a decision, and returns its number. Of the caller's memory it keeps the servers of the choices, where the
// decision is not packed (Record.Packs), and nothing else.
func (d *Records) Add(decision Record) Number {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	number := d.first + Number(len(d.kept))
	d.kept = append(d.kept, remembered{since: now.Sub(d.origin), hash: maphash.String(d.seed, decision.RequestID)})
	d.rememberLocked(number, decision)
	d.expireLocked(now)
	d.boundLocked()
	return number
}

// Replace is Add of what is known of a request now, in place of what was remembered by a number, as where its stream was
// continued: it is one request, and of attempts that were remembered with more servers those are kept. It returns the
// number that it has, another one where that is forgotten.
func (d *Records) Replace(number Number, decision Record) Number {
	d.mu.Lock()
	if !d.isKeptLocked(number) {
		d.mu.Unlock()
		return d.Add(decision)
	}
	defer d.mu.Unlock()
	known := d.recordLocked(number).Choices
	for i := range min(len(known), len(decision.Choices)) {
		if c := &decision.Choices[i]; known[i].serverBytes() > c.serverBytes() {
			c.Candidates = known[i].Candidates
		}
	}
	d.rememberLocked(number, decision)
	d.boundLocked()
	return number
}

// isKeptLocked reports whether a decision is remembered by a number.
func (d *Records) isKeptLocked(number Number) bool {
	return number >= d.first && number < d.first+Number(len(d.kept))
}

// rememberLocked makes a decision what is remembered by its number, packed where nothing is to come.
func (d *Records) rememberLocked(number Number, decision Record) {
	if decision.Packs() {
		d.packLocked(number, decision)
		return
	}
	decision.Choices = slices.Clone(decision.Choices)
	d.keepWholeLocked(number, decision)
}

// boundLocked cuts the oldest and forgets them, until the rest is no more than it may be.
func (d *Records) boundLocked() {
	for last := len(d.kept) - 1; d.used > d.most && d.cut < last; d.cut++ {
		number := d.first + Number(d.cut)
		if oldest, is := d.whole[number]; is {
			oldest.KeepOnlyChosen()
			d.settleLocked(number, oldest)
		}
	}
	for d.used > d.most && len(d.kept) > 1 {
		d.forgetOldestLocked()
	}
}

// settleLocked packs a decision, or counts it anew where it cannot be packed.
func (d *Records) settleLocked(number Number, decision Record) {
	if decision.canPack() {
		d.packLocked(number, decision)
		return
	}
	d.keepWholeLocked(number, decision)
}

// packLocked packs a decision in place of what is remembered by its number.
func (d *Records) packLocked(number Number, decision Record) {
	d.releaseLocked(number)
	r := &d.kept[number-d.first]
	r.at, r.isPacked = d.packed.write(&decision), true
	d.countLocked(r, packedBytes+int(r.at.to-r.at.from))
}

// keepWholeLocked is packLocked without packing.
func (d *Records) keepWholeLocked(number Number, decision Record) {
	d.releaseLocked(number)
	r := &d.kept[number-d.first]
	d.whole[number], r.isPacked = decision, false
	d.countLocked(r, decision.bytes())
}

func (d *Records) countLocked(r *remembered, bytes int) {
	d.used += bytes - r.bytes
	r.bytes = bytes
}

// releaseLocked lets go of what is remembered by a number.
func (d *Records) releaseLocked(number Number) {
	if r := &d.kept[number-d.first]; r.isPacked {
		d.packed.forget(r.at)
	}
	delete(d.whole, number)
}

// expireLocked forgets what is older than decisions are kept.
func (d *Records) expireLocked(now time.Time) {
	for len(d.kept) > 0 && now.Sub(d.origin)-d.kept[0].since > d.keep {
		d.forgetOldestLocked()
	}
}

func (d *Records) forgetOldestLocked() {
	d.releaseLocked(d.first)
	d.used -= d.kept[0].bytes
	d.kept = d.kept[1:]
	d.first++
	d.cut = max(0, d.cut-1)
}

// Complete writes down what an attempt, counted from 0, of a decision took, and how it ended. It does
// nothing where that is forgotten.
func (d *Records) Complete(number Number, attempt int, m Measured, outcome string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isKeptLocked(number) {
		return
	}
	found := d.recordLocked(number)
	if attempt >= len(found.Choices) {
		return
	}
	found.Choices[attempt].Measured, found.Choices[attempt].Outcome = m, outcome
	d.settleLocked(number, found)
	d.boundLocked()
}

// Find returns the newest decision on a request as it is now, false if it is not remembered.
func (d *Records) Find(requestID string) (Record, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(time.Now())
	hash := maphash.String(d.seed, requestID)
	for i := len(d.kept) - 1; i >= 0; i-- { // people ask for few, and a table of all would cost each request
		if d.kept[i].hash != hash {
			continue
		}
		if found := d.recordLocked(d.first + Number(i)); found.RequestID == requestID {
			return found.now(), true
		}
	}
	return Record{}, false
}

// Newest returns the last n decisions as they are now, the newest first.
func (d *Records) Newest(n int) []Record { return d.After(time.Time{}, n) }

// After returns the decisions on requests that arrived after a time, likewise: at most so many.
func (d *Records) After(after time.Time, limit int) (newest []Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(time.Now())
	for i := len(d.kept) - 1; i >= 0 && len(newest) < limit; i-- {
		if r := d.recordLocked(d.first + Number(i)); r.At.After(after) {
			newest = append(newest, r.now())
		}
	}
	return newest
}

// recordLocked is what is remembered by a number: what is packed, as it was.
func (d *Records) recordLocked(number Number) Record {
	if r := &d.kept[number-d.first]; r.isPacked {
		return d.packed.read(r.at)
	}
	return d.whole[number]
}

// now is a copy: the request may end meanwhile.
func (d *Record) now() Record {
	now := *d
	now.Choices = slices.Clone(now.Choices)
	return now
}

// What a decision takes that is not packed, beside the names of servers, which the fleet has anyway, with the entry of
// a map; and what one that is packed takes beside its bytes.
var (
	packedBytes    = int(reflect.TypeFor[remembered]().Size())
	recordBytes    = packedBytes + int(reflect.TypeFor[Record]().Size()) + 32
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
		n += choiceBytes + len(c.Outcome) + len(c.Mismatch) + c.serverBytes()
	}
	return n
}

// serverBytes is about how much of it the servers take that it was made from.
func (c *Choice) serverBytes() int {
	prefill, decode := len(c.Candidates.Prefill), len(c.Candidates.Decode)
	return candidateBytes*(prefill+decode) + linkBytes*prefill*decode
}

// KeepOnlyChosen forgets the servers that were not chosen.
func (d *Record) KeepOnlyChosen() {
	for i := range d.Choices {
		d.Choices[i].KeepOnlyChosen()
	}
}

// KeepOnlyChosen forgets the servers that were not chosen.
func (c *Choice) KeepOnlyChosen() {
	if len(c.Candidates.Prefill) > 1 || len(c.Candidates.Decode) > 1 {
		c.Candidates = c.Candidates.Only(c.Chosen.Prefill, c.Chosen.Decode)
	}
}
