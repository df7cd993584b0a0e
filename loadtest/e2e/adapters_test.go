package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const (
	adapterCount    = 12
	adaptersEach    = 4 // that a server may have
	adapterRequests = 240
	adapterClients  = 4
	adapterLoadTime = 400 * time.Millisecond
)

// TestAdapters: six engines with room for four of twelve LoRA adapters each. Where
// adapters are is part of what a pair costs; told that loads cost nothing, the same
// gateway spreads the same requests over equal servers at random.
func TestAdapters(t *testing.T) {
	random, tookRandom := runAdapters(t, "--adapter-load", "0", "--adapter-swap", "0", "--adapter-place", "0")
	affine, tookAffine := runAdapters(t)
	t.Logf("%d requests for %d adapters: %d loads at random in %v, %d by affinity in %v",
		adapterRequests, adapterCount, random, tookRandom.Round(time.Millisecond), affine, tookAffine.Round(time.Millisecond))
	if affine < adapterCount || affine*5 > random {
		t.Errorf("%d loads by affinity, %d at random: want a fifth at most, and one at least for each adapter", affine, random)
	}
}

// runAdapters sends the requests through a gateway of their own and counts the loads.
func runAdapters(t *testing.T, flags ...string) (loads int, took time.Duration) {
	t.Helper()
	f := startAdapterEngines(t)
	listen, admin := freeAddress(t), freeAddress(t)
	args := append([]string{"serve", "--listen", listen, "--admin", admin, "--adapters-per-server", fmt.Sprint(adaptersEach),
		"--prefill", strings.Join(f.prefill, ","), "--decode", strings.Join(f.decode, ",")}, flags...)
	for i := range adapterCount {
		args = append(args, "--adapter", fmt.Sprintf("adapter-%d=/adapters/%d", i, i))
	}
	gateway := start(t, "gateway", "bin/tandem", args...)
	waitFor(t, gateway, "all servers to be up", readyWithin, process.SeesUp("http://"+admin, len(f.prefill)+len(f.decode)))

	source := rand.New(rand.NewPCG(7, 7))
	work := make(chan int, adapterRequests)
	for range adapterRequests {
		work <- source.IntN(adapterCount)
	}
	close(work)
	began := time.Now()
	var clients sync.WaitGroup
	for range adapterClients {
		clients.Go(func() {
			for adapter := range work {
				body := fmt.Sprintf(`{"model":"adapter-%d","max_tokens":4,"prompt":%q}`, adapter, strings.Repeat("all the same words ", 60))
				resp, err := client.Post("http://"+listen+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					continue
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("adapter %d: status %d", adapter, resp.StatusCode)
				}
			}
		})
	}
	clients.Wait()
	took = time.Since(began)
	for _, url := range append(f.prefill, f.decode...) {
		loads += adapterLoads(t, url)
	}
	if err := gateway.Stop(); err != nil {
		t.Error(err)
	}
	return loads, took
}

// startAdapterEngines starts three prefill and three decode servers.
func startAdapterEngines(t *testing.T) (f fleet) {
	t.Helper()
	for i := range 6 {
		addr, role := freeAddress(t), "prefill"
		if i >= 3 {
			role = "decode"
		}
		p := start(t, "engine "+role, "bin/tandem-lab", "engine", "--listen", addr, "--role", role,
			"--lora-load-time", adapterLoadTime.String(), "--max-loras", fmt.Sprint(adaptersEach))
		waitFor(t, p, "the health of an engine", readyWithin, answers("http://"+addr+"/health"))
		if role == "prefill" {
			f.prefill = append(f.prefill, "http://"+addr)
		} else {
			f.decode = append(f.decode, "http://"+addr)
		}
	}
	return f
}

// adapterLoads is how often an engine was told to load an adapter.
func adapterLoads(t *testing.T, engine string) int {
	t.Helper()
	var state struct {
		ByPath map[string]int `json:"requests_by_path"`
	}
	if err := getJSON(engine+"/sim/state?requests=0", &state); err != nil {
		t.Fatal(err)
	}
	return state.ByPath["/v1/load_lora_adapter"]
}
