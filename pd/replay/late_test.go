package replay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file")

// lateOf is what becomes of requests that wait for their turn, one line each, and how many went nowhere.
func lateOf(f Fleet, cfg order.Config, requests []Request) (lines string, lost int) {
	var out strings.Builder
	New(f).Late(requests, cfg, func(req *Request, p Placement, placed bool) {
		if !placed {
			lost++
		}
		fmt.Fprintf(&out, "%5v %6d tokens: %2s to %-2s cached %5d waited %6v first token %6v\n", req.At.Round(time.Millisecond), req.Prompt, p.Prefill, p.Decode, p.Cached,
			p.Waited.Round(time.Millisecond), p.TTFT.Round(time.Millisecond))
	})
	return out.String(), lost
}

// burst are requests of conversations that come faster than two pairs prefill them at first.
func burst(n int) (requests []Request) {
	draw := rand.New(rand.NewPCG(7, 7))
	for i := range n {
		length := uint64(4 + draw.IntN(40))
		requests = append(requests, Request{At: time.Duration(i) * 300 * time.Millisecond, Prompt: int(length) * BlockTokens, Output: 20 + draw.IntN(100), Blocks: blocks(uint64(draw.IntN(6)), length)})
	}
	return requests
}

// A burst waits and goes as the gateway's order says, in which it is written. The golden text can be
// disputed; a second replay says the same.
func TestLate_Golden(t *testing.T) {
	f := fleet(pairs(2)...)
	got, lost := lateOf(f, order.DefaultConfig(), burst(24))
	if again, _ := lateOf(f, order.DefaultConfig(), burst(24)); again != got || lost != 0 {
		t.Errorf("%d are lost; a second time\n%s", lost, again)
	}
	if *rewrite {
		if err := os.WriteFile("testdata/late.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/late.txt")
	if err != nil || got != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// One prefill server is busy with a long prompt, and two wait for it: the shorter one goes first though
// it came later, when the server is about to be free, and its wait is part of the time to its first token.
func TestLate_TheShorterGoesFirst(t *testing.T) {
	f := fleet(pairs(1)...)
	f.Model.PairsFirst = true
	var went []int
	var first, short Placement
	New(f).Late([]Request{
		{Prompt: 20_480, Output: 2, Blocks: blocks(1, 40)},
		{At: 10 * time.Millisecond, Prompt: 30_720, Output: 2, Blocks: blocks(2, 60)},
		{At: 20 * time.Millisecond, Prompt: 1024, Output: 2, Blocks: blocks(3, 2)},
	}, order.DefaultConfig(), func(req *Request, p Placement, placed bool) {
		went = append(went, req.Prompt)
		switch req.Prompt {
		case 20_480:
			first = p
		case 1024:
			short = p
		}
	})
	if fmt.Sprint(went) != "[20480 1024 30720]" || first.Waited != 0 {
		t.Errorf("order %v, the first waited %v", went, first.Waited)
	}
	if late := first.Compute - order.DefaultConfig().Ahead - 20*time.Millisecond; short.Waited < late-time.Millisecond || short.Waited > late+order.LookInterval || short.TTFT < short.Waited+short.Compute {
		t.Errorf("the short one waited %v of %v, and has its first token after %v", short.Waited, late, short.TTFT)
	}
}

// What no server can take goes nowhere at once, and what has waited for all of its patience later.
func TestLate_SomeGoNowhere(t *testing.T) {
	if _, lost := lateOf(fleet(Server{ID: "p", Prefills: true}), order.DefaultConfig(), burst(3)); lost != 3 {
		t.Errorf("without decode %d of 3 are lost", lost)
	}
	impatient := order.DefaultConfig()
	impatient.Patience = time.Second
	lost := 0
	New(fleet(pairs(1)...)).Late(burst(40), impatient, func(req *Request, p Placement, placed bool) {
		if placed {
			return
		}
		if lost++; p.Waited != impatient.Patience {
			t.Errorf("the request of %v gives up after %v", req.At, p.Waited)
		}
	})
	if lost == 0 || lost > 20 {
		t.Errorf("%d of 40 are lost", lost)
	}
}
