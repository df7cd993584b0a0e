package memory

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// share of a cgroup's limit at which the runtime begins to collect more often. What is left is for what
// it does not count: the kernel's buffers of connections, and ZMQ.
const share = 0.9

// unhurried is how large a heap may grow, in bytes, before how much of it is alive counts. A gateway's live
// heap is small beside what it allocates: without this the collector runs tens of times a second.
const unhurried = 64 << 20

// Apply sets the soft memory limit by the cgroup's, and lets a small heap grow before it is collected.
// Each of them is left to whoever set GOMEMLIMIT or GOGC.
func Apply(log *slog.Logger) { apply(os.DirFS("/"), os.Getenv, log) }

func apply(root fs.FS, env func(string) string, log *slog.Logger) {
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
	if env("GOGC") == "" {
		new(target).follow()
	}
}

// target keeps the collector's target so that a small heap may grow to a size before it is collected.
type target struct{ percent int }

// follow sets the target now and after each collection: what becomes garbage at once is cleaned up then.
func (t *target) follow() {
	t.set(liveHeap())
	runtime.AddCleanup(new([64]byte), func(t *target) { t.follow() }, t)
}

func (t *target) set(live uint64) {
	if percent := percentFor(live); percent != t.percent {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentFor is the growth that is allowed to a heap of which so many bytes are alive: as far as unhurried,
// or by half. Of a large heap most is buffers of open streams, which have no pointers to follow: collecting
// twice as often as the runtime would costs little, and what is not collected is memory for each stream.
// It moves in steps of a quarter, since each change stops all goroutines for a moment.
func percentFor(live uint64) int {
	const least, most = 50, 1600
	percent := most
	if live > 0 {
		percent = int(min(most, 100*unhurried/live))
	}
	step := least
	for next := step + step/4; next <= percent; next = step + step/4 {
		step = next
	}
	return step
}

// liveHeap is how many bytes the last collection left.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
