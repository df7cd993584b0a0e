package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// replicated is the whole set-up. Engines are named as gateways name them: host:port.
type replicated struct {
	redis    *redisServer
	config   string // file
	own      []string
	dials    []string
	replicas []*replica
	answered int64 // by conversations that have ended
}

func (f *replicated) engines() []string { return append(append([]string(nil), f.own...), f.dials...) }

// replica is one of the gateways.
type replica struct {
	name          string
	listen, admin string
	process       *process.Process
	talk          *conversations // nil: no client talks to it
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	f := &replicated{redis: startRedis(t), config: filepath.Join(t.TempDir(), "tandem.yaml")}
	var file strings.Builder
	for _, role := range []string{"prefill", "decode"} {
		fmt.Fprintf(&file, "%s:\n", role)
		f.startOwn(t, role, &file)
		f.startInConnectMode(t, role, &file)
	}
	if err := os.WriteFile(f.config, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r := &replica{name: fmt.Sprintf("replica-%d", i), listen: freeAddress(t), admin: freeAddress(t)}
		f.replicas = append(f.replicas, r)
		f.startReplica(t, r)
	}
	return f
}

// startOwn starts an engine of ours, which binds, and adds it to the file.
func (f *replicated) startOwn(t *testing.T, role string, file *strings.Builder) {
	t.Helper()
	addr, events, replay := freeAddress(t), freeAddress(t), freeAddress(t)
	anyHost := func(addr string) string {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		return "tcp://*:" + port
	}
	p := start(t, "engine "+role, "bin/tandem-lab", "engine", "--listen", addr, "--role", role, "--model", ownModel,
		"--time-scale", "0.05", "--blocks", fmt.Sprint(kvBlocks), "--max-model-len", "4096",
		"--events", anyHost(events), "--replay", anyHost(replay))
	waitFor(t, p, "the health of engine "+role, readyWithin, answers("http://"+addr+"/health"))
	fmt.Fprintf(file, "- {url: http://%s, events: tcp://%s, replay: tcp://%s}\n", addr, events, replay)
	f.own = append(f.own, addr)
}

// startInConnectMode starts an engine of others, in connect mode, and adds it to the file.
func (f *replicated) startInConnectMode(t *testing.T, role string, file *strings.Builder) {
	t.Helper()
	addr, events := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, []string{"POD_IP=127.0.0.1"}, "sim "+role, ".cache/e2e/sim",
		"--port", port, "--model", dialsModel, "--force-dummy-tokenizer", "--max-model-len", "4096",
		"--max-num-seqs", "32", "--enable-kvcache", "--kv-cache-size", fmt.Sprint(kvBlocks), "--block-size", "16",
		"--zmq-endpoint", "tcp://"+events)
	waitFor(t, p, "the health of sim "+role, readyWithin, answers("http://"+addr+"/health"))
	fmt.Fprintf(file, "- {url: http://%s, events: tcp://%s, events-bind: true}\n", addr, events)
	f.dials = append(f.dials, addr)
}

// startReplica starts a gateway, for the first time or again.
func (f *replicated) startReplica(t *testing.T, r *replica) {
	t.Helper()
	r.process = start(t, r.name, "bin/tandem", "serve", "-c", f.config, "--redis", f.redis.addr, "--replica", r.name,
		"--listen", r.listen, "--admin", r.admin, "--kv-snapshot", "1s", "--probe-interval", "250ms",
		"--pairs-first") // engines without delay compute a prompt sooner than they fetch it
	waitFor(t, r.process, r.name+" to be ready", readyWithin, answers("http://"+r.admin+"/readyz"))
	waitFor(t, r.process, r.name+" to listen to all engines", readyWithin, func() error {
		if held := r.held(t); len(held) < len(f.engines()) {
			return fmt.Errorf("only to %v", held)
		}
		return nil
	})
}

// kill ends a gateway as a crash does; what is said to it meanwhile may fail.
func (f *replicated) kill(t *testing.T, r *replica) {
	t.Helper()
	r.process.Kill(t)
	r.talk.stop()
	f.answered += r.talk.answered.Load()
	r.talk = nil
}

// talkToAll begins conversations with the replicas that have none.
func (f *replicated) talkToAll(t *testing.T) {
	t.Helper()
	for i, r := range f.replicas {
		if r.talk == nil {
			r.talk = converse(t, "http://"+r.listen, uint64(i)+100*uint64(f.answered), ownModel, dialsModel)
		}
	}
}

// fallSilent ends all conversations.
func (f *replicated) fallSilent() {
	for _, r := range f.replicas {
		r.talk.stop()
		f.answered += r.talk.answered.Load()
	}
}

// waitForAnswers waits until each replica that is talked to has given n more.
func (f *replicated) waitForAnswers(t *testing.T, n int64) {
	t.Helper()
	want := make(map[*replica]int64)
	for _, r := range f.replicas {
		if r.talk != nil {
			want[r] = r.talk.answered.Load() + n
		}
	}
	waitFor(t, nil, fmt.Sprintf("%d answers of each gateway", n), readyWithin, func() error {
		for r, want := range want {
			if got := r.talk.answered.Load(); got < want {
				return fmt.Errorf("%s owes %d (%v)", r.name, want-got, r.talk.failure())
			}
		}
		return nil
	})
}

func (f *replicated) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		if r.talk == nil {
			continue
		}
		if err := r.talk.failure(); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
	}
}
