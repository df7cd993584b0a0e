package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
)

// sourceStatus is what GET /debug/kv says of one engine.
type sourceStatus struct {
	Server  string `json:"server"`
	GPU     int    `json:"gpu_blocks"`
	Batches int    `json:"batches"`
}

// sources asks a replica what it knows of each engine, by name.
func (r *replica) sources() (map[string]sourceStatus, error) {
	var out struct {
		Sources []sourceStatus `json:"sources"`
	}
	if err := getJSON("http://"+r.admin+"/debug/kv", &out); err != nil {
		return nil, err
	}
	known := make(map[string]sourceStatus)
	for _, s := range out.Sources {
		known[s.Server] = s
	}
	return known, nil
}

// held is how many blocks a replica believes each engine to hold.
func (r *replica) held(t *testing.T) map[string]int {
	t.Helper()
	sources, err := r.sources()
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	held := make(map[string]int)
	for server, s := range sources {
		held[server] = s.GPU
	}
	return held
}

// metric reads one series of a replica, 0 if it has none.
func (r *replica) metric(t *testing.T, series string) float64 {
	t.Helper()
	res, err := client.Get("http://" + r.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return 0
}

// key of an engine in Redis.
func key(engine, name string) string { return "tandem:kv:{" + engine + "#0}:" + name }

// receiver is the name of the replica that hears an engine, which Redis has before its
// address.
func (r *redisServer) receiver(engine string) (string, error) {
	lease, err := r.ask("GET", key(engine, "receiver"))
	name, _, _ := strings.Cut(lease, " ")
	return name, err
}

// receiver asks Redis which replica hears an engine in connect mode.
func (f *replicated) receiver(t *testing.T, engine string) *replica {
	t.Helper()
	var found *replica
	waitFor(t, nil, "a receiver for "+engine, takeover, func() error {
		name, err := f.redis.receiver(engine)
		for _, r := range f.replicas {
			if err == nil && r.name == name {
				found = r
				return nil
			}
		}
		return fmt.Errorf("it is %q (%v)", name, err)
	})
	return found
}

// receivedByOthers is a condition: engines in connect mode have receivers other than this one.
func (f *replicated) receivedByOthers(than *replica) error {
	for _, engine := range f.dials {
		name, err := f.redis.receiver(engine)
		if err != nil {
			return err
		}
		if name == "" || name == than.name {
			return fmt.Errorf("that of %s is %q", engine, name)
		}
	}
	return nil
}

// snapshots is a condition: Redis has one of each engine.
func (f *replicated) snapshots() error {
	for _, engine := range f.engines() {
		n, err := f.redis.ask("EXISTS", key(engine, "snapshot"))
		if err == nil && n != "1" {
			err = fmt.Errorf("none of %s", engine)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waitForKnowledge waits until every replica knows of blocks of every engine.
func (f *replicated) waitForKnowledge(t *testing.T) {
	t.Helper()
	waitFor(t, nil, "all replicas to know blocks of all engines", settled, func() error {
		for _, r := range f.replicas {
			held := r.held(t)
			for _, engine := range f.engines() {
				if held[engine] == 0 {
					return fmt.Errorf("%s knows none of %s: %v", r.name, engine, held)
				}
			}
		}
		return nil
	})
}

// mustHearOnce asserts that of the engines in connect mode batches come to the receiver only;
// the others know its deltas.
func (f *replicated) mustHearOnce(t *testing.T) {
	t.Helper()
	before := f.batches(t)
	f.waitForAnswers(t, 20)
	after := f.batches(t)
	for _, engine := range f.dials {
		receiver := f.receiver(t, engine)
		for _, r := range f.replicas {
			if heard := after[r][engine] - before[r][engine]; (heard > 0) != (r == receiver) {
				t.Errorf("%s heard %d batches of %s, whose receiver is %s", r.name, heard, engine, receiver.name)
			}
		}
	}
}

// batches is how many each replica has heard of each engine.
func (f *replicated) batches(t *testing.T) map[*replica]map[string]int {
	t.Helper()
	all := make(map[*replica]map[string]int)
	for _, r := range f.replicas {
		sources, err := r.sources()
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		all[r] = make(map[string]int)
		for engine, s := range sources {
			all[r][engine] = s.Batches
		}
	}
	return all
}

// waitForEvents waits until the receivers of the engines in connect mode have heard more.
func (f *replicated) waitForEvents(t *testing.T) {
	t.Helper()
	for _, engine := range f.dials {
		r := f.receiver(t, engine)
		before, err := r.sources()
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, r.process, r.name+" to hear "+engine, takeover, func() error {
			now, err := r.sources()
			if err == nil && now[engine].Batches == before[engine].Batches {
				err = fmt.Errorf("%d batches all the time", now[engine].Batches)
			}
			return err
		})
	}
}

// agree returns a condition: for a while nothing has changed any more, all replicas
// hold the same blocks of each engine, and of ours as many as the engine says.
func (f *replicated) agree(t *testing.T) func() error {
	const looks = 20 // of waitFor, about a second
	var last map[string]int
	same := 0
	return func() error {
		now := f.replicas[0].held(t)
		if !maps.Equal(now, last) {
			last, same = now, 0
		}
		if wrong := f.differences(t, now); wrong != nil {
			same = 0
			return wrong
		}
		if same++; same < looks {
			return errors.New("they agree, but not for long")
		}
		return nil
	}
}

// differences says where the replicas know other than this, or this is not what the
// engines hold.
func (f *replicated) differences(t *testing.T, known map[string]int) error {
	var wrong []error
	for _, r := range f.replicas[1:] {
		if got := r.held(t); !maps.Equal(got, known) {
			wrong = append(wrong, fmt.Errorf("%s knows %v, %s %v", r.name, got, f.replicas[0].name, known))
		}
	}
	for _, engine := range f.own {
		if n, err := reachable(engine); err != nil || n != known[engine] {
			wrong = append(wrong, fmt.Errorf("%s holds %d blocks (%v), %d are known", engine, n, err, known[engine]))
		}
	}
	for _, engine := range f.dials {
		if known[engine] == 0 {
			wrong = append(wrong, fmt.Errorf("nothing is known of %s", engine))
		}
	}
	return errors.Join(wrong...)
}

// reachable counts the blocks that an engine of ours holds together with all before
// them; the others are of no use to a prompt.
func reachable(engine string) (n int, err error) {
	var out struct {
		Blocks []struct {
			Hash   uint64 `json:"hash"`
			Parent uint64 `json:"parent"`
			First  bool   `json:"first"`
		} `json:"blocks"`
	}
	if err := getJSON("http://"+engine+"/sim/blocks?tokens=0", &out); err != nil {
		return 0, err
	}
	behind := make(map[uint64][]uint64)
	var reached []uint64
	for _, b := range out.Blocks {
		if b.First {
			reached = append(reached, b.Hash)
			continue
		}
		behind[b.Parent] = append(behind[b.Parent], b.Hash)
	}
	for ; len(reached) > 0; n++ {
		last := reached[len(reached)-1]
		reached = append(reached[:len(reached)-1], behind[last]...)
	}
	return n, nil
}
