package memory

import (
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// share of a cgroup's limit at which the runtime begins to collect more often. What is left is for what
// it does not count: the kernel's buffers of connections, and ZMQ.
const share = 0.9

// unhurried is how large a heap may grow, in bytes, before how much of it is alive counts. A gateway's live
// heap is small beside what it allocates: without this the collector runs tens of times a second.
const unhurried = 64 << 20

// cautious is that size, in bytes, while much of what is allocated stays, as where streams open. What stays lies
// densely then: it takes the places of what has become garbage meanwhile, and not every fourth one in a fresh page.
const cautious = 16 << 20

// smallest is the heap, in bytes, that the runtime does not collect before at a target of 100 %; at another one it is
// larger or smaller by as much. It is more than what is alive before the first request.
const smallest = 4 << 20

// slack is how much any heap may grow, in bytes: less is not worth a collection.
const slack = 4 << 20

// interval is how long a heap should take to grow to its next collection. One that grows slowly, as that of
// streams which say little, is collected before it has grown as far as it might: what its streams left
// behind when they opened would stay for minutes otherwise.
const interval = 2 * time.Second

// leftover is how much memory must be of no use, in bytes, to be given back at once when a heap that grew fast has
// come to rest: what some hundred streams leave behind when they open. The runtime would take seconds for it, and
// longer to halve the stacks of streams, which it does as it collects.
const leftover = slack

// mostAtOnce is up to which size of a heap, in bytes, its memory is given back at once: that takes a few
// milliseconds for 100 MB.
const mostAtOnce = 1 << 30

// Apply sets the soft memory limit by the cgroup's, and lets a small heap grow before it is collected.
// Each of them is left to whoever set GOMEMLIMIT or GOGC. stop leaves the collector as it is then.
func Apply(log *slog.Logger) (stop func()) { return apply(os.DirFS("/"), os.Getenv, log) }

func apply(root fs.FS, env func(string) string, log *slog.Logger) (stop func()) {
	if env("GOMEMLIMIT") == "" {
		switch limit, err := limitOf(root); {
		case err == nil:
			soft := int64(share * float64(limit))
			debug.SetMemoryLimit(soft)
			log.Info("memory limit read from the cgroup", "limit_bytes", limit, "soft_limit_bytes", soft)
		case !errors.Is(err, errNoLimit):
			log.Warn("the cgroup's memory limit cannot be read", "error", err.Error())
		}
	}
	if env("GOGC") != "" {
		return func() {}
	}
	t := newTarget(time.Now(), readHeap())
	t.follow()
	return t.watch()
}

// RecordNothing ends the recording of where memory was allocated, for a process that nobody asks for profiles: of a
// busy gateway it is a hundredth of the CPU. It is for before the first request.
func RecordNothing() { runtime.MemProfileRate = 0 }

// target keeps the collector's target by what is alive of the heap and by how fast that grows.
type target struct {
	mu        sync.Mutex // guards all below
	percent   int
	pace      float64 // bytes allocated per second
	room      uint64  // bytes that a small heap may grow: cautious to unhurried
	live      uint64  // bytes that the last collection left
	collected reading // at the last collection
	looked    reading // by watch
	settled   uint64  // bytes that had been allocated when memory was last given back
	stopped   bool
}

// reading is how much had been allocated when, in bytes.
type reading struct {
	at        time.Time
	allocated uint64
}

// paceTo is how many bytes per second were allocated from one reading to the next.
func (r reading) paceTo(next reading) float64 {
	return float64(next.allocated-r.allocated) / max(next.at.Sub(r.at), time.Millisecond).Seconds()
}

// newTarget returns a target that expects a fast heap until it has seen another one.
func newTarget(now time.Time, h heap) *target {
	first := reading{now, h.allocated}
	return &target{pace: math.Inf(1), room: cautious, live: h.live, collected: first, looked: first}
}

// follow sets the target now and after each collection: what becomes garbage at once is cleaned up then.
func (t *target) follow() {
	if t.afterCollection(time.Now(), readHeap()) {
		runtime.AddCleanup(new([64]byte), func(t *target) { t.follow() }, t)
	}
}

// afterCollection sets the target for a heap that was collected. A heap that began to grow fast is given room at
// once.
func (t *target) afterCollection(now time.Time, h heap) (goesOn bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := reading{now, h.allocated}
	before := t.collected
	if t.looked.at.After(before.at) {
		before = t.looked
	}
	t.pace = max(t.pace, before.paceTo(next))
	t.room = roomFor(t.room, next.allocated-t.collected.allocated, int64(h.live-t.live))
	t.collected, t.live = next, h.live
	return t.setLocked(h.live)
}

// roomFor is how much a small heap may grow, in bytes, of which so many were allocated since the last collection and
// so many more are alive. What says little, since little was allocated, changes nothing.
func roomFor(room, allocated uint64, grown int64) uint64 {
	switch {
	case allocated < cautious/2:
		return room
	case grown > int64(allocated/8):
		return cautious
	}
	return min(2*room, unhurried)
}

// watch looks eight times in an interval, until it is stopped. What a burst leaves behind it gives back.
func (t *target) watch() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(interval / 8)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				if h := readHeap(); t.look(time.Now(), h) {
					runtime.GC() // a sync.Pool lets go of what it has at the second collection
					debug.FreeOSMemory()
				}
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stopped = true
	}
}

// look sets the target by the pace since the last look, and reports whether memory is to be given back now.
func (t *target) look(now time.Time, h heap) (giveBack bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := reading{now, h.allocated}
	t.pace = t.looked.paceTo(next)
	t.looked = next
	if giveBack = t.setLocked(h.live) && atRest(t.pace) && (t.isBehindBurst(h) || h.isLeftBehind(t.pace)); giveBack {
		t.room = cautious // a heap at rest begins anew
		t.settled = h.allocated
	}
	return giveBack
}

// atRest reports whether a heap that grows by so many bytes per second is at rest: where more than slack comes in an
// interval, requests do. Two collections at once and the memory's way to the system delayed some twenty of five hundred
// requests a second by milliseconds, and the runtime gives it back by and by.
func atRest(pace float64) bool { return pace*interval.Seconds() < slack }

// isBehindBurst reports whether a heap that is at rest has seen a burst since memory was last given back: its streams
// have stacks to halve, buffers that came back lie in pools, and what counts as alive may be from before a thousand long
// prompts were let go. How much of the memory is known to be of no use says little of that: a collection by the
// runtime's own target, in the moment before, takes what is easily found. That much was allocated first: what a scrape
// leaves is not worth the collection of a large heap.
func (t *target) isBehindBurst(h heap) bool {
	return h.live > slack && h.live+h.unused < mostAtOnce && h.allocated-t.settled > max(cautious, h.live/8)
}

// isLeftBehind reports whether much of the memory is of no use, and will not be soon to a heap that grows by pace
// bytes per second.
func (h heap) isLeftBehind(pace float64) bool {
	return h.unused > leftover && h.unused > h.live/4 && h.live+h.unused < mostAtOnce && pace*interval.Seconds() < float64(h.unused)/4
}

func (t *target) setLocked(live uint64) (goesOn bool) {
	if t.stopped {
		return false
	}
	if percent := percentFor(live, t.room, t.pace); percent != t.percent {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
	return true
}

// percentFor is the growth that is allowed to a heap of which so many bytes are alive, and that grows by
// pace bytes per second: what it grows in an interval, as far as its room or by half. Of a large heap most is
// buffers of open streams, which have no pointers to follow: collecting twice as often as the runtime would
// costs little, and what is not collected is memory for each stream. It moves in steps of a quarter, since
// each change stops all goroutines for a moment.
func percentFor(live, room uint64, pace float64) int {
	const least, usual, most = 10, 50, 1600
	alive := max(float64(live), 1)
	growth := min(max(float64(room), alive/2), max(slack, pace*interval.Seconds()))
	percent := int(min(most, max(least, 100*growth/alive), 100*(alive+growth)/smallest))
	step := usual
	for next := step + step/4; next <= percent; next = step + step/4 {
		step = next
	}
	for step > percent {
		step = max(least, step-step/5)
	}
	return step
}

// heap is what the runtime says of the heap.
type heap struct {
	live      uint64 // bytes that the last collection left
	allocated uint64 // bytes since the process began
	unused    uint64 // bytes of memory that is not alive, and that the system has not got back
}

func readHeap() (h heap) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	var objects, free uint64
	for i, into := range []*uint64{&h.live, &h.allocated, &objects, &free} {
		if samples[i].Value.Kind() == metrics.KindUint64 {
			*into = samples[i].Value.Uint64()
		}
	}
	h.unused = objects - min(objects, h.live) + free
	return h
}
