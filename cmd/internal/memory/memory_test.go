package memory

import (
	"errors"
	"io"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/fstest"
	"time"
)

// files are a file system with these files.
func files(content map[string]string) fstest.MapFS {
	all := fstest.MapFS{}
	for name, text := range content {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// The lowest limit of the groups that the process is in counts, of either version of cgroups.
func TestLimit_IsTheLowestOfItsGroups(t *testing.T) {
	const none = "9223372036854771712"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0: none
	}{
		"version 2, in a container": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000000\n"}, 1000000},
		"version 2, its own group": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "500\n", "sys/fs/cgroup/a/memory.max": "max\n",
		}, 500},
		"version 2, the group above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "700\n",
		}, 700},
		"version 2, the host's path": {map[string]string{"proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.max": "800\n"}, 800},
		"version 2, none":            {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 1": {map[string]string{
			"proc/self/cgroup": "12:cpu,cpuacct:/x\n4:memory:/x\n0::/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "900\n",
		}, 900},
		"version 1, none":   {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": none + "\n"}, 0},
		"another hierarchy": {map[string]string{"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/memory.max": "600\n"}, 0},
		"no files":          {map[string]string{"proc/self/cgroup": "0::/\n"}, 0},
	} {
		got, err := limitOf(files(c.files))
		if got != c.want || (c.want == 0) != errors.Is(err, errNoLimit) {
			t.Errorf("%s: %d %v", name, got, err)
		}
	}
	if _, err := limitOf(files(nil)); err == nil || errors.Is(err, errNoLimit) {
		t.Errorf("without /proc: %v", err)
	}
}

// A small heap that grows fast may grow to a fixed size, a large one by half of what is alive of it, and what
// is between the two changes in few steps.
func TestPercent_LetsASmallHeapGrow(t *testing.T) {
	for live, want := range map[uint64][2]int{
		0: {1200, 1600}, 1 << 20: {1200, 1600}, unhurried / 10: {750, 1000}, unhurried: {90, 100}, 100 * unhurried: {50, 50}, math.MaxUint64: {50, 50},
	} {
		if got := percentFor(live, unhurried, math.Inf(1)); got < want[0] || got > want[1] {
			t.Errorf("%d bytes alive: %d %%, want %v", live, got, want)
		}
	}
	seen := map[int]bool{}
	for live := uint64(1 << 20); live < 2*unhurried; live += 64 << 10 {
		seen[percentFor(live, unhurried, math.Inf(1))] = true
	}
	if len(seen) > 18 {
		t.Errorf("%d targets between 1 and 128 MB", len(seen))
	}
}

// The runtime collects no heap before it has the size that the target makes of 4 MB, however little of it is alive: a
// gateway that has just begun would have 64 MB of garbage, among which its first streams lie, in place of 16.
func TestPercent_BoundsAHeapOfWhichLittleIsAlive(t *testing.T) {
	for _, live := range []uint64{1 << 20, 2 << 20, 3 << 20} {
		least := uint64(percentFor(live, cautious, math.Inf(1))) * smallest / 100
		if most := live + cautious; least > most || least < most*3/4 {
			t.Errorf("%d MB alive: it is collected at %d MB, want %d", live>>20, least>>20, most>>20)
		}
	}
}

// Whoever sets GOMEMLIMIT or GOGC decides; else both follow the cgroup and the heap.
func TestApply_LeavesWhatTheEnvironmentSets(t *testing.T) {
	limit, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetMemoryLimit(limit); debug.SetGCPercent(percent) })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	root := files(map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10000000000\n"})
	apply(root, func(string) string { return "set" }, log)()
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("the limit of the environment became %d", got)
	}
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("the target of the environment became %d", got)
	}
	defer apply(root, func(string) string { return "" }, log)()
	if got := debug.SetMemoryLimit(-1); got != 9000000000 {
		t.Errorf("the limit is %d", got)
	}
	if got := debug.SetGCPercent(100); got <= 100 {
		t.Errorf("the target of a small heap is %d %%", got)
	}
}

// The target follows the heap: once much of it is alive it may grow by no more than half of that.
func TestTarget_FollowsTheHeap(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	newTarget(time.Now(), readHeap()).follow()
	if now := gcPercent(); now <= 100 {
		t.Errorf("the target of a small heap is %d %%", now)
	}
	alive := make([]byte, 3*unhurried)
	for deadline := time.Now().Add(20 * time.Second); gcPercent() != 50 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		runtime.GC()
	}
	runtime.KeepAlive(alive)
	defer runtime.GC() // else it counts as alive in other tests
	if now := gcPercent(); now != 50 {
		t.Errorf("the target of a large heap is %d %%", now)
	}
}

// A heap that grows slowly is collected each few seconds, whatever it might grow to, though not for less than
// is worth it; and one that begins to grow fast has room again after one collection.
func TestTarget_FollowsThePace(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	const live = 100 << 20
	now, allocated := time.Now(), uint64(0)
	c := newTarget(now, heap{live: live, allocated: allocated})
	grow := func(bytes uint64, in time.Duration) (time.Time, heap) {
		now, allocated = now.Add(in), allocated+bytes
		return now, heap{live: live, allocated: allocated}
	}
	for _, step := range []struct {
		name        string
		bytes       uint64
		in          time.Duration
		collected   bool
		least, most int // percent
	}{
		{"as it begins", 1 << 20, time.Second, true, 50, 64},
		{"after a second", 1 << 20, time.Second / 100, false, 10, 10},
		{"10 MB a second", 5 << 20, time.Second / 2, false, 15, 20},
		{"next to nothing", 10, time.Second / 2, false, 10, 10},
		{"200 MB a second", 4 << 20, time.Second / 50, true, 50, 64},
	} {
		if step.collected {
			c.afterCollection(grow(step.bytes, step.in))
		} else {
			c.look(grow(step.bytes, step.in))
		}
		if c.percent < step.least || c.percent > step.most {
			t.Errorf("%s: %d %%, want %d to %d", step.name, c.percent, step.least, step.most)
		}
	}
	if got := percentFor(1<<20, unhurried, 0) * smallest / 100; got < slack {
		t.Errorf("1 MB alive that does not grow: it is collected at %d bytes", got)
	}
}

// A heap in which much stays is collected often, so that what stays lies densely; one in which next to nothing does has
// its full room again after two collections. What is too little to judge by changes nothing.
func TestRoom_FollowsWhatStays(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name            string
		room, allocated uint64
		grown           int64
		want            uint64
	}{
		{"as it begins, requests come and go", cautious, 16 * mb, mb, 2 * cautious},
		{"again", 2 * cautious, 32 * mb, mb, unhurried},
		{"it has its full room", unhurried, 64 * mb, -3 * mb, unhurried},
		{"streams open", unhurried, 64 * mb, 12 * mb, cautious},
		{"they open still", cautious, 16 * mb, 4 * mb, cautious},
		{"they close", cautious, 16 * mb, -4 * mb, 2 * cautious},
		{"a collection at rest", unhurried, mb, mb, unhurried},
		{"another", cautious, mb, -9 * mb, cautious},
	} {
		if got := roomFor(c.room, c.allocated, c.grown); got != c.want {
			t.Errorf("%s: %d MB, want %d", c.name, got/mb, c.want/mb)
		}
	}
	now := time.Now()
	c := newTarget(now, heap{live: 5 * mb})
	for allocated := uint64(20 * mb); allocated <= 60*mb; allocated += 20 * mb {
		c.afterCollection(now, heap{live: 5 * mb, allocated: allocated})
	}
	full := c.percent
	c.afterCollection(now, heap{live: 15 * mb, allocated: 100 * mb})
	if opening := percentFor(15*mb, cautious, math.Inf(1)); full != percentFor(5*mb, unhurried, math.Inf(1)) || c.percent != opening {
		t.Errorf("%d %%, then %d", full, c.percent)
	}
	c.room = unhurried
	if !c.look(now.Add(time.Hour), heap{live: 15 * mb, allocated: 100 * mb, unused: 40 * mb}) || c.room != cautious {
		t.Errorf("at rest it has room for %d MB", c.room/mb)
	}
}

// What a burst left behind is given back when the heap has come to rest, once it is worth it.
func TestTarget_GivesBackWhatABurstLeft(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name string
		heap heap
		pace float64 // bytes a second
		want bool
	}{
		{"a thousand streams opened", heap{live: 25 * mb, unused: 40 * mb}, mb, true},
		{"they open still", heap{live: 25 * mb, unused: 40 * mb}, 20 * mb, false},
		{"five hundred requests a second come behind a burst", heap{live: 10 * mb, unused: 64 * mb}, 6 * mb, false},
		{"a thousand opened whose bodies came back", heap{live: 33 * mb, unused: 12 * mb}, mb, true},
		{"a hundred opened", heap{live: 6 * mb, unused: 5 * mb}, 0, true},
		{"little is left", heap{live: 5 * mb, unused: 3 * mb}, 0, false},
		{"little beside what is alive", heap{live: 400 * mb, unused: 90 * mb}, 0, false},
		{"a heap for which it takes long", heap{live: 900 * mb, unused: 600 * mb}, 0, false},
	} {
		if got := atRest(c.pace) && c.heap.isLeftBehind(c.pace); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A heap that has come to rest behind a burst is collected once, though the runtime has collected it the moment before and
// little of it is known to be of no use, and not again until it has grown by more than a page of metrics takes.
func TestTarget_CollectsOnceBehindABurst(t *testing.T) {
	const mb = 1 << 20
	now := time.Now()
	c := &target{percent: 50, room: unhurried, collected: reading{now, 90 * mb}, looked: reading{now, 90 * mb}, settled: 90 * mb}
	h := heap{live: 22 * mb, allocated: 90 * mb, unused: 5 * mb}
	look := func(grown uint64) bool {
		now, h.allocated = now.Add(interval/8), h.allocated+grown
		return c.look(now, h)
	}
	burst := func(grown uint64) (collected bool) {
		if look(grown) {
			t.Error("it is collected while it grows")
		}
		c.afterCollection(now, h)
		return look(0)
	}
	if !burst(24 * mb) {
		t.Error("it is at rest behind a burst and is not collected")
	}
	for range 20 {
		if look(0) {
			t.Error("it is collected again")
		}
	}
	if burst(mb) {
		t.Error("it is collected behind a page of metrics")
	}
	if h.live, h.unused = 2*mb, 3*mb; burst(24 * mb) {
		t.Error("two megabytes are collected for nothing")
	}
	if h.live = 62 * mb; !look(0) {
		t.Error("it has grown, rests and is not collected")
	}
	if h.live = 800 * mb; burst(24 * mb) {
		t.Error("a large heap is collected for little")
	}
}

// Of a heap that was let go the unused part is known, until the system has it.
func TestReadHeap_KnowsWhatIsUnused(t *testing.T) {
	big := make([]byte, 64<<20)
	for i := 0; i < len(big); i += 4096 {
		big[i] = 1
	}
	debug.FreeOSMemory() // what other tests left
	alive := readHeap()
	runtime.KeepAlive(big)
	runtime.GC()
	left := readHeap()
	debug.FreeOSMemory()
	returned := readHeap()
	if left.unused < alive.unused+48<<20 || returned.unused > left.unused-32<<20 {
		t.Errorf("unused: %d MB, then %d, then %d", alive.unused>>20, left.unused>>20, returned.unused>>20)
	}
}

// gcPercent is the target that the runtime has.
func gcPercent() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
