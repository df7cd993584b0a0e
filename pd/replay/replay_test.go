package replay

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// fleet has servers that prefill a thousand tokens in 0.1 s and take 10 ms for a step.
func fleet(servers ...Server) Fleet {
	for i := range servers {
		servers[i].Prefill, servers[i].Step = curve.Curve{0, 0.1, 0}, curve.Curve{0.01, 0, 0}
	}
	return Fleet{Model: cost.Default(), Links: cost.DefaultLinks(), Servers: servers}
}

// pairs are as many prefill as decode servers, p1 and d1 and so on.
func pairs(n int) (servers []Server) {
	for i := range n {
		number := string(rune('1' + i))
		servers = append(servers, Server{ID: "p" + number, Prefills: true}, Server{ID: "d" + number, Decodes: true})
	}
	return servers
}

// blocks are n blocks of a prompt, the same for the same name.
func blocks(name, n uint64) (ids []uint64) {
	for i := range n {
		ids = append(ids, name<<32+i)
	}
	return ids
}

func place(t *testing.T, r *Replay, req Request) Placement {
	t.Helper()
	p, ok := r.Place(&req)
	if !ok {
		t.Fatalf("%+v goes nowhere", req)
	}
	return p
}

// What is predicted of one request is what the next one finds: prompts ahead of it, and the blocks that
// its servers hold.
func TestReplay_TheNextRequestFindsWhatWasPredicted(t *testing.T) {
	f := fleet(pairs(1)...)
	f.Model.PairsFirst = true
	r := New(f)
	first := place(t, r, Request{Prompt: 10_240, Output: 10, Blocks: blocks(1, 20)})
	if first.Prefill != "p1" || first.Decode != "d1" || first.Cached != 0 || first.Compute != 1024*time.Millisecond || first.TTFT < first.Compute {
		t.Errorf("the first: %+v", first)
	}
	behind := place(t, r, Request{At: 24 * time.Millisecond, Prompt: 10_240, Output: 10, Blocks: blocks(2, 20)})
	if ahead := behind.TTFT - first.TTFT; ahead < 990*time.Millisecond || ahead > 1010*time.Millisecond {
		t.Errorf("it waits %v behind the first", ahead)
	}
	again := place(t, r, Request{At: time.Minute, Prompt: 11_264, Output: 10, Blocks: append(blocks(1, 20), 7, 8)})
	if again.Cached != 10_240 || again.Compute > 110*time.Millisecond || again.TTFT >= first.TTFT {
		t.Errorf("its beginning is cached, and nobody waits: %+v", again)
	}
}

// Work is shared: of requests that come together each goes to a server of its own.
func TestReplay_RequestsThatComeTogetherShareTheServers(t *testing.T) {
	f := fleet(pairs(3)...)
	f.Model.PairsFirst = true
	r := New(f)
	var went []string
	for i := range uint64(3) {
		went = append(went, place(t, r, Request{Prompt: 20_480, Output: 10, Blocks: blocks(i, 40)}).Prefill)
	}
	slices.Sort(went)
	if !slices.Equal(went, []string{"p1", "p2", "p3"}) {
		t.Errorf("they went to %v", went)
	}
}

// Servers whose KV differs make no pair, and aggregated ones neither; without any a request goes nowhere.
func TestReplay_WhoMakesAPair(t *testing.T) {
	for name, c := range map[string]struct {
		servers []Server
		prefill string
		placed  bool
	}{
		"alike":           {[]Server{{ID: "p", Prefills: true}, {ID: "d", Decodes: true}}, "p", true},
		"of another kind": {[]Server{{ID: "p", Prefills: true, Class: 1}, {ID: "d", Decodes: true, Class: 2}}, "", true},
		"aggregated":      {[]Server{{ID: "p", Prefills: true}, {ID: "d", Decodes: true, Aggregated: true}}, "", true},
		"both":            {[]Server{{ID: "b", Prefills: true, Decodes: true}}, "", true},
		"no decode":       {[]Server{{ID: "p", Prefills: true}}, "", false},
	} {
		f := fleet(c.servers...)
		f.Model.PairsFirst = true
		p, ok := New(f).Place(&Request{Prompt: 50_000, Output: 10})
		if ok != c.placed || p.Prefill != c.prefill {
			t.Errorf("%s: placed %v, %+v", name, ok, p)
		}
	}
}

// A full cache forgets what was used longest ago, of a prompt the end before the beginning.
func TestPrefixCache_ForgetsTheEndsFirst(t *testing.T) {
	c := newPrefixCache(5)
	c.add(blocks(1, 3))
	c.add(blocks(2, 3))
	if a, b := c.match(blocks(1, 3)), c.match(blocks(2, 3)); a != 2 || b != 3 {
		t.Errorf("it holds %d of the older and %d of the newer prompt", a, b)
	}
	c.add(blocks(1, 2))
	c.add(blocks(3, 2))
	if a, b := c.match(blocks(1, 3)), c.match(blocks(2, 3)); a != 2 || b != 1 {
		t.Errorf("used again it holds %d, of the other one %d", a, b)
	}
	if len(c.held) != 5 || c.order.Len() != 5 {
		t.Errorf("%d and %d blocks", len(c.held), c.order.Len())
	}
}

// The table says which server got what, and how long first tokens take.
func TestReport_WriteTable(t *testing.T) {
	r := NewReport(fleet(pairs(1)...))
	r.Add(&Request{Prompt: 1000, Output: 1}, Placement{Prefill: "p1", Decode: "d1", Cached: 500, Waited: time.Second, Compute: 2 * time.Second, TTFT: 3 * time.Second}, true)
	r.Add(&Request{At: 5 * time.Second, Prompt: 100, Output: 1}, Placement{Decode: "d1", Compute: time.Second, TTFT: time.Second}, true)
	r.Add(&Request{At: 10 * time.Second, Prompt: 1, Output: 1}, Placement{}, false)
	r.Add(&Request{At: 2 * time.Second, Prompt: 1, Output: 1}, Placement{Waited: time.Minute}, false)
	var out strings.Builder
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	const want = `  server  prompts  tokens  cached    busy  answers
      p1        1    1000  50.0 %  20.0 %        0
      d1        1     100   0.0 %  10.0 %        2

4 requests in 10s: decode alone 1, no server 1, waited in vain 1
time to first token, predicted: mean 2s, p50 1s, p90 3s, p99 3s, max 3s; of the mean 500ms waiting for a turn
`
	if out.String() != want {
		t.Errorf("it prints\n%s", out.String())
	}
}
