package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// startRedis starts a redis-server that keeps nothing, and returns its address.
func startRedis(t *testing.T) string {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err == nil {
		bin, err = filepath.Rel(process.Root(t), bin)
	}
	if err != nil {
		t.Fatal(err)
	}
	address := process.FreeAddress(t)
	p := process.Start(t, nil, "redis", bin, "--port", process.Port(t, address), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	process.WaitFor(t, p, "redis-server", process.ReadyWithin, func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return address
}

// startReplicas starts two pickers that share a Redis, and waits until one decides for both: the
// leader is the first that it returns.
func startReplicas(t *testing.T, f fleet, flags ...string) (leader, follower *picker) {
	t.Helper()
	flags = append([]string{"--redis", startRedis(t)}, flags...)
	leader, follower = startPicker(t, f, flags...), startPicker(t, f, flags...)
	process.WaitFor(t, leader.p, "one picker to decide for both", process.ReadyWithin, func() error {
		if leader.gauge(t, "tandem_leader_followed") == 1 {
			leader, follower = follower, leader
		}
		if n, followed := leader.gauge(t, "tandem_leader_followers"), follower.gauge(t, "tandem_leader_followed"); n != 1 || followed != 1 {
			return fmt.Errorf("%v follow it, the other follows: %v", n, followed)
		}
		return nil
	})
	return leader, follower
}

// runningOn is how many requests each server computes now.
func runningOn(t *testing.T, servers []*server) (running []int) {
	t.Helper()
	for _, s := range servers {
		var state struct{ Running int }
		if err := process.JSON(s.url+"/sim/state", &state); err != nil {
			t.Fatal(err)
		}
		running = append(running, state.Running)
	}
	return running
}

// Replicas of the picker, each behind an Envoy of its own, know of each other's load: a stream goes
// where the other replica's does not run.
func TestReplicas_ShareLoad(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 2)
	leader, follower := startReplicas(t, f)
	gateways := []string{startProxy(t, standalone(t, leader)).url, startProxy(t, standalone(t, follower)).url}
	const rounds = 6 // by chance alone two of two servers are right each time in one run of 64
	for round := range rounds {
		ctx, leave := context.WithCancel(t.Context())
		for i := range gateways {
			body := fmt.Sprintf(`{"model":%q,"max_tokens":4000,"ignore_eos":true,"prompt":"%d %d %s","stream":true}`, model, round, i, words(900))
			defer openStream(t, ctx, gateways[(round+i)%2], body).Body.Close()
		}
		if running := runningOn(t, f["both"]); running[0] != 1 || running[1] != 1 {
			t.Errorf("round %d: the servers compute %v", round, running)
		}
		leave()
		checkIdle(t, leader)
		checkIdle(t, follower)
	}
}

// What one replica of the picker sent to a server the other one knows, though nothing but the text of the
// prompts is known: a prompt that comes to the other one next finds its KV.
func TestReplicas_ShareWhatTheySent(t *testing.T) {
	const prompts = 12
	f := fleet{}
	f.start(t, "both", 4)
	leader, follower := startReplicas(t, f, "--tokens", "approximate")
	gateways := []string{startProxy(t, standalone(t, leader)).url, startProxy(t, standalone(t, follower)).url}
	cached := func(gateway string, n int) (tokens int) {
		a := send(t.Context(), gateway+completionsPath, fmt.Sprintf(`{"model":%q,"max_tokens":4,"prompt":"%d %s"}`, model, n, words(20_000)))
		var said struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(a.body), &said); a.status != http.StatusOK || err != nil {
			t.Fatalf("%d, %v: %.300s", a.status, err, a.body)
		}
		return said.Usage.Details.Cached
	}
	for n := range prompts {
		cached(gateways[n%2], n)
	}
	for i, p := range []*picker{leader, follower} {
		process.WaitFor(t, p.p, "it to know what the other sent", process.ReadyWithin, func() error {
			if n := p.gauge(t, `tandem_sent_text_records_total{event="received"}`); n < prompts/2 {
				return fmt.Errorf("picker %d received %v records", i, n)
			}
			return nil
		})
	}
	found := 0
	for n := range prompts {
		if cached(gateways[(n+1)%2], n) > 2000 {
			found++
		}
	}
	t.Logf("%d of %d prompts found their KV through the other picker", found, prompts)
	if found < prompts-1 { // by chance alone 3 would
		t.Error("too few")
	}
	checkIdle(t, leader)
	checkIdle(t, follower)
}

// The replica that decides for both is killed under load: that costs the requests that it had, and
// none that begin later, since the other one decides for itself at once and then for all.
func TestReplicas_TheLeaderKilledCostsItsOwnRequestsAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-envoy runs it")
	}
	f := startPairs(t, "--time-scale", "0.2")
	leader, follower := startReplicas(t, f)
	s := standalone(t, leader)
	s.Pickers = append(s.Pickers, addressOf(t, follower.address))
	s.PickerRetries = 2
	l := startTraffic(t, startProxy(t, s).url, 8)
	l.goOn(t, 50)
	killed := time.Now()
	leader.p.Kill(t)
	l.goOn(t, 100)
	l.lostBefore(t, killed)
	checkIdle(t, follower)
	if n := follower.gauge(t, "tandem_leader_followed"); n != 0 {
		t.Errorf("it follows the one that was killed: %v", n)
	}
}

// Requests for LoRA adapters go where the adapter is, which a server that has it not loads once.
func TestAdapters_GoWhereTheyAreLoaded(t *testing.T) {
	const adapters, each = 6, 2
	f := fleet{}
	f.start(t, "both", 3, "--lora-load-time", "50ms", "--max-loras", fmt.Sprint(each))
	flags := []string{"--adapters-per-server", fmt.Sprint(each)}
	for i := range adapters {
		flags = append(flags, "--adapter", fmt.Sprintf("adapter-%d=/adapters/%d", i, i))
	}
	p := startPicker(t, f, flags...)
	gateway := startProxy(t, standalone(t, p)).url
	for n := range 6 * adapters {
		body := fmt.Sprintf(`{"model":"adapter-%d","max_tokens":4,"prompt":%q}`, n*5%adapters, words(900))
		if a := send(t.Context(), gateway+completionsPath, body); a.status != http.StatusOK || a.err != nil || a.text == "" {
			t.Errorf("adapter %d: %d, %v: %.300s", n*5%adapters, a.status, a.err, a.body)
		}
	}
	loads := 0
	for _, s := range f["both"] {
		var state struct {
			ByPath map[string]int `json:"requests_by_path"`
		}
		if err := process.JSON(s.url+"/sim/state?requests=0", &state); err != nil {
			t.Fatal(err)
		}
		loads += state.ByPath["/v1/load_lora_adapter"]
	}
	if loads != adapters {
		t.Errorf("%d loads of %d adapters, for which there is room", loads, adapters)
	}
	checkIdle(t, p)
}
