package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSchedule_ManyAtOnceEqualOneByOne(t *testing.T) {
	// So small a cache and batch that prompts are chunked and sequences preempted.
	tight := start(t, func(cfg *Config) {
		cfg.Blocks, cfg.MaxModelLen, cfg.MaxBatchedTokens, cfg.MaxSeqs = 40, 600, 64, 8
	})
	roomy := start(t, nil)
	texts := func(e *Engine, body fields) []string {
		var all []string
		for _, c := range ask[chatAnswer](t, e, "/v1/completions", body).Choices {
			all = append(all, c.Text)
		}
		return all
	}
	round := 0
	eventually(t, "sequences are preempted", func() bool {
		round++
		var prompts []string
		for i := range 6 {
			prompts = append(prompts, strings.Repeat(fmt.Sprint("number ", round, i), 10))
		}
		body := fields{"prompt": prompts, "n": 2, "max_tokens": 150, "ignore_eos": true}
		if got, want := texts(tight, body), texts(roomy, body); !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		return tight.State().Preempted > 0
	})
	if s := tight.State(); s.KVBlocksUsed != 0 || s.Running != 0 || s.Waiting != 0 {
		t.Errorf("left behind: %d blocks, %d running, %d waiting", s.KVBlocksUsed, s.Running, s.Waiting)
	}
}

func TestSchedule_PriorityOvertakes(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.PriorityScheduling, cfg.MaxSeqs, cfg.TimeScale = true, 1, 1 })
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := client.Do(request(t, ctx, e, "/v1/chat/completions", chatBody(5, 3000))); err == nil {
			resp.Body.Close()
		}
	})
	eventually(t, "the seat is taken", func() bool { return e.State().Running == 1 })
	order := make(chan int, 3)
	for i, priority := range []int{5, 0, -5} {
		wg.Go(func() { // it leaves the seat once it has said that it has it
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			resp, err := client.Do(request(t, ctx, e, "/v1/chat/completions", chatBody(5, 3000).with(fields{"priority": priority, "stream": true})))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			order <- priority
		})
		eventually(t, "it waits", func() bool { return e.State().Waiting == i+1 })
	}
	hangUp()
	wg.Wait()
	if a, b, c := <-order, <-order, <-order; a != -5 || b != 0 || c != 5 {
		t.Errorf("served in the order %d, %d, %d", a, b, c)
	}
}

func TestSchedule_ClientGoneFreesAtOnce(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.TimeScale, cfg.MaxSeqs = 1, 2 })
	for _, streamed := range []bool{true, false} {
		ctx, hangUp := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 { // two run, two wait
			wg.Go(func() {
				resp, err := client.Do(request(t, ctx, e, "/v1/chat/completions", chatBody(50, 3000).with(fields{"stream": streamed})))
				if err != nil {
					return
				}
				defer resp.Body.Close()
				<-ctx.Done()
			})
		}
		eventually(t, "two run and two wait", func() bool { s := e.State(); return s.Running == 2 && s.Waiting == 2 })
		hangUp()
		wg.Wait()
		eventually(t, "all is freed", func() bool {
			s := e.State()
			return s.KVBlocksUsed == 0 && s.Running == 0 && s.Waiting == 0 && s.ServerLoad == 0
		})
	}
	if s := e.State(); s.Aborted != 8 {
		t.Errorf("aborted %d", s.Aborted)
	}
}

func TestSchedule_ClientGoneWhileKVIsOnItsWay(t *testing.T) {
	forever := func(cfg *Config) { cfg.TimeScale, cfg.LinkBytesPerSecond = 1, 1 }
	p, d := start(t, forever), start(t, forever)
	body := chatBody(50, 10)
	body = body.with(fields{"kv_transfer_params": prefill(t, p, body)})
	ctx, hangUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := client.Do(request(t, ctx, d, "/v1/chat/completions", body)); err == nil {
			resp.Body.Close()
		}
	})
	eventually(t, "the KV is on its way", func() bool { s := d.State(); return s.Waiting == 1 && s.KVBlocksUsed > 0 })
	hangUp()
	wg.Wait()
	eventually(t, "both sides are free", func() bool {
		return d.State().KVBlocksUsed == 0 && d.State().Waiting == 0 && p.State().HandoffsOpen == 0
	})
}

func TestStepTime_FollowsTheFormulas(t *testing.T) {
	for _, c := range []struct {
		before, tokens int
		want           float64 // ms, worked out by hand
	}{{0, 0, 0}, {0, 1, 16.5}, {0, 8192, 169.1}, {0, 12000, 259.3}, {8192, 8192, 225.6}} {
		w := work{s: &sequence{computed: c.before}, n: c.tokens}
		if got := prefillTime(c.tokens, w.attended()).Seconds() * 1000; got < c.want-0.1 || got > c.want+0.1 {
			t.Errorf("prefill of %d tokens behind %d: %.2f ms, want %.1f", c.tokens, c.before, got, c.want)
		}
	}
	for _, c := range []struct{ share, want float64 }{{0, 5.74}, {0.5, 26.3}, {1, 34.01}} {
		if got := decodeTime(c.share).Seconds() * 1000; got < c.want-0.1 || got > c.want+0.1 {
			t.Errorf("decode with %v of the cache: %.2f ms, want %.1f", c.share, got, c.want)
		}
	}
}

func TestPace_KeepsTheMeanOfShortSteps(t *testing.T) {
	var p pace
	begun := time.Now()
	for range 500 {
		p.wait(t.Context(), 100*time.Microsecond)
	}
	if took := time.Since(begun); took < 45*time.Millisecond || took > 2*time.Second {
		t.Errorf("500 steps of 100 us took %v", took)
	}
}
