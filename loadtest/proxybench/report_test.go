package proxybench

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// reportOf is a report of three proxies with figures of one measure, by round.
func reportOf(t *testing.T, nginx [][2]float64, other []float64) *Report {
	t.Helper()
	cfg := Default()
	cfg.Rounds = len(nginx)
	for _, name := range []string{"direct", "nginx", "other"} {
		cfg.Proxies = append(cfg.Proxies, Proxy{Name: name, Legs: "one", Engine: "vllm"})
	}
	r := newReport(&cfg)
	r.Rounds = cfg.Rounds
	blast := &measures[5]
	if blast.name != "blast" {
		t.Fatalf("the measure is %s", blast.name)
	}
	for round, figures := range nginx {
		for _, v := range figures {
			r.add(&cfg.Proxies[1], blast, round, map[string]float64{"blast-cpu": v}, &tally{}, Legs{}, nil)
		}
		r.add(&cfg.Proxies[2], blast, round, map[string]float64{"blast-cpu": other[round]}, &tally{}, Legs{}, nil)
	}
	r.finish()
	return r
}

// A round in which nginx differs from itself by more than the limit does not count, and is named.
func TestReport_DropsRoundsThatWereNotSteady(t *testing.T) {
	r := reportOf(t, [][2]float64{{1, 1.14}, {1, 1.16}, {2, 2}}, []float64{4, 100, 6})
	if f := r.row("other").Figures["blast-cpu"]; f.Value != 5 || f.Rounds != 2 {
		t.Errorf("the median of the rounds that count is %+v", f)
	}
	if len(r.Dropped) != 1 || r.Dropped[0].Round != 2 || r.Dropped[0].Measure != "blast" {
		t.Errorf("dropped: %+v", r.Dropped)
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "dropped: blast of round 2, nginx differs from itself by 16 %") {
		t.Errorf("%v\n%s", err, &table)
	}
}

// A measure of which a round was dropped is taken again, where there is time, and no more often than it was to be.
func TestNextRound_TakesAgainWhatWasDropped(t *testing.T) {
	order := []*Proxy{{Name: "nginx"}, {Name: "other"}, {Name: "nginx"}}
	took := durations{}
	for _, p := range order {
		took.add(starting, p.Name, time.Second)
		took.add("blast", p.Name, 2*time.Second)
		took.add("long", p.Name, 100*time.Second)
	}
	for name, c := range map[string]struct {
		nginx  [][2]float64
		rounds int // that are wanted
		again  int
		left   time.Duration
		want   string
	}{
		"all were steady":             {[][2]float64{{1, 1}, {1, 1}}, 2, 0, time.Hour, ""},
		"one was not":                 {[][2]float64{{1, 1}, {1, 2}}, 2, 0, time.Hour, "blast"},
		"just in time":                {[][2]float64{{1, 1}, {1, 2}}, 2, 0, 9 * time.Second, "blast"},
		"there is no time":            {[][2]float64{{1, 1}, {1, 2}}, 2, 0, 8 * time.Second, ""},
		"no machine is steady enough": {[][2]float64{{1, 2}, {1, 2}}, 2, 2, time.Hour, ""},
		"all are not made yet":        {[][2]float64{{1, 1}}, 2, 0, time.Hour, "blast long"},
		"and there is no time":        {[][2]float64{{1, 1}}, 2, 0, time.Minute, ""},
	} {
		r := reportOf(t, c.nginx, []float64{1, 1})
		r.Wanted, r.Again = c.rounds, c.again
		cfg := Default()
		cfg.Rounds, cfg.Measures = c.rounds, []string{"blast", "long"}
		if got := strings.Join(cfg.nextRound(r, took, order, cfg.Within-c.left), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Multiples are of the baseline's median in the same rounds.
func TestReport_MultiplesAreOfTheBaseline(t *testing.T) {
	r := reportOf(t, [][2]float64{{2, 2}, {2, 2.1}}, []float64{8, 8})
	if f := r.row("other").Figures["blast-cpu"]; f.Times != 4 {
		t.Errorf("%+v", f)
	}
	if f := r.row("nginx").Figures["blast-cpu"]; f.Times != 1 {
		t.Errorf("nginx itself: %+v", f)
	}
}

// Errors of clients, faults of legs and pairs with one leg are in the row, and the run is not clean.
func TestReport_SaysWhatWentWrong(t *testing.T) {
	cfg := Default()
	cfg.Proxies = []Proxy{{Name: "p", Legs: "pair", Engine: "vllm"}}
	for name, add := range map[string]func(r *Report){
		"a client's error": func(r *Report) {
			t := &tally{errors: map[string]int{"lost": 2}}
			r.add(&cfg.Proxies[0], &measures[0], 0, nil, t, Legs{}, nil)
		},
		"a leg's fault": func(r *Report) {
			r.add(&cfg.Proxies[0], &measures[0], 0, nil, &tally{}, Legs{Faults: map[string]int{"read before": 2}}, nil)
		},
		"one leg of two": func(r *Report) { r.add(&cfg.Proxies[0], &measures[0], 0, nil, &tally{}, Legs{Alone: 2}, nil) },
		"nothing came": func(r *Report) {
			r.add(&cfg.Proxies[0], &measures[0], 0, nil, &tally{}, Legs{}, errNothing)
		},
		"it did not start": func(r *Report) { r.fail("p", errors.New("port in use")) },
	} {
		r := newReport(&cfg)
		if !r.OK() {
			t.Fatal("an empty report is not clean")
		}
		add(r)
		if r.OK() {
			t.Errorf("%s: the report is clean", name)
		}
	}
}

// The built-in proxies are valid, nginx among them, and so are those of other projects.
func TestProxies_AreValid(t *testing.T) {
	own, err := BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	others, err := ReadProxies("routers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range append(own, others...) {
		if seen[p.Name] {
			t.Errorf("%s is there twice", p.Name)
		}
		seen[p.Name] = true
	}
	if cfg := Default(); !seen[cfg.Baseline] || !seen[cfg.Direct] {
		t.Errorf("%s or %s is not among %v", cfg.Baseline, cfg.Direct, seen)
	}
	for text, why := range map[string]string{
		"- {name: a, legs: two, engine: vllm}":                     "legs",
		"- {name: a, legs: one, engine: other}":                    "engine",
		"- {name: a, legs: one, engine: vllm, measures: [speed]}":  "measure",
		"- {name: a, legs: one, engine: vllm, comand: [sleep, 1]}": "comand",
	} {
		if _, err := parseProxies([]byte(text)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Without the measure that is asked for there would be no round, and no error.
func TestRun_WantsMeasuresThatThereAre(t *testing.T) {
	cfg := Default()
	cfg.Measures = []string{"requests", "speed"}
	if _, err := Run(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), `"speed"`) || !strings.Contains(err.Error(), "memory-long, requests") {
		t.Errorf("%v", err)
	}
}

// nginx is measured first and last, whatever the order of the file.
func TestOrder_BeginsAndEndsWithTheBaseline(t *testing.T) {
	var names []string
	for _, p := range inOrder([]Proxy{{Name: "a"}, {Name: "nginx"}, {Name: "b"}}, "nginx") {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "nginx a b nginx" {
		t.Errorf("the order is %s", got)
	}
}

// A name with brackets and spaces does not shift what is read behind it.
func TestStat_IsReadBehindTheName(t *testing.T) {
	s, err := parseStat([]byte("42 (a) b (c)) S 7 42 42 0 -1 4194560 100 200 0 0 11 12 13 14 20 0 1 0 100 1000 10"))
	if err != nil || s != (stat{42, 7, 27}) {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := parseStat([]byte("42 (a")); err == nil {
		t.Error("half a line is read")
	}
}

// A process tree has the CPU and the memory of its children too.
func TestTree_CountsChildren(t *testing.T) {
	if _, err := os.Stat("/proc/self/smaps_rollup"); err != nil {
		t.Skip("there is no /proc here")
	}
	// The shell stays, since it has something to do behind its child.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "sleep 60; true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	of := tree{cmd.Process.Pid}
	var stats []stat
	for deadline := time.Now().Add(20 * time.Second); len(stats) < 2 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var err error
		if stats, err = of.stats(); err != nil {
			t.Fatal(err)
		}
	}
	if len(stats) != 2 || stats[1].parent != of.root {
		t.Fatalf("the tree is %+v", stats)
	}
	if bytes, err := of.memory(); err != nil || bytes < 50<<10 {
		t.Errorf("%d bytes, %v", bytes, err)
	}
	if _, err := (tree{1 << 30}).cpu(); err == nil {
		t.Error("a process that is not there has CPU")
	}
}

// A program's text is a file that is mapped: what is mapped of it is nobody's stream.
func TestTree_MemoryIsWithoutFiles(t *testing.T) {
	if _, err := os.Stat("/proc/self/smaps_rollup"); err != nil {
		t.Skip("there is no /proc here")
	}
	const size, tmpfs = 32 << 20, 0x01021994
	dir := t.TempDir()
	var of syscall.Statfs_t
	if err := syscall.Statfs(dir, &of); err != nil {
		t.Fatal(err)
	}
	if of.Type == tmpfs {
		t.Skip("its files count as shared memory")
	}
	file, err := os.Create(filepath.Join(dir, "text"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	grew := func(fd, flags int) int {
		self := tree{os.Getpid()}
		before, err := self.memory()
		if err != nil {
			t.Fatal(err)
		}
		mapped, err := syscall.Mmap(fd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < size; i += os.Getpagesize() {
			mapped[i] = 1
		}
		after, err := self.memory()
		if err := errors.Join(err, syscall.Munmap(mapped)); err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	if n := grew(int(file.Fd()), syscall.MAP_SHARED); n > size/2 {
		t.Errorf("%d bytes more with a file of %d", n, size)
	}
	if n := grew(-1, syscall.MAP_PRIVATE|syscall.MAP_ANON); n < size/2 {
		t.Errorf("%d bytes more with %d of its own", n, size)
	}
}

// The CPU of a process is that of all its threads, to the nanosecond: some work takes more than none, and
// less than a tick of /proc would.
func TestTree_ReadsTheClockOfAProcess(t *testing.T) {
	self := tree{os.Getpid()}
	before, err := self.cpu()
	if err != nil || before <= 0 {
		t.Fatalf("%v %v", before, err)
	}
	for sum, until := 0, time.Now().Add(100*time.Millisecond); ; sum++ {
		after, err := self.cpu()
		if err != nil {
			t.Fatal(err)
		}
		if after > before {
			break
		}
		if time.Now().After(until) {
			t.Fatal("no CPU was used in 100 ms")
		}
	}
	if _, err := (tree{1 << 30}).cpu(); err == nil {
		t.Error("a process that is not there has a clock")
	}
}
