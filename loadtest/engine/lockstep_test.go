package engine

import (
	"bufio"
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestLockstep_AStepTakesAsLongAsOnTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLockstep()
		l.join()
		l.join()
		took := make(chan time.Duration, 2)
		go func() { took <- l.await(t.Context(), 3*time.Millisecond) }()
		synctest.Wait()
		if len(took) != 0 {
			t.Fatal("one rank began a step that the other has not come to")
		}
		took <- l.await(t.Context(), 7*time.Millisecond)
		if a, b := <-took, <-took; a != 7*time.Millisecond || b != a {
			t.Errorf("a step of %v and %v", a, b)
		}
		// A rank without work is not waited for.
		l.leave()
		if d := l.await(t.Context(), time.Millisecond); d != time.Millisecond {
			t.Errorf("alone %v", d)
		}
		// A dead one is, for ever.
		l.die()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if d := l.await(ctx, time.Millisecond); d != 0 || ctx.Err() == nil {
			t.Errorf("a step of %v without the dead rank", d)
		}
	})
}

// When a rank dies its streams break at once. Those of the others go on, unless they
// step with it: then they hang, and health says nothing.
func TestRanks_OneDies(t *testing.T) {
	for _, lockstep := range []bool{false, true} {
		e := start(t, func(cfg *Config) {
			cfg.DataParallel, cfg.RankPorts, cfg.Lockstep, cfg.TimeScale = 2, true, lockstep, 0.2
		})
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		lines := make([]*bufio.Scanner, 2)
		for rank := range lines {
			req := request(t, ctx, e, "/v1/chat/completions", chatBody(60, 3000).with(fields{"stream": true}))
			req.URL.Host = e.RankURL(rank)[len("http://"):]
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			lines[rank] = bufio.NewScanner(resp.Body)
			scan(t, lines[rank], 6)
		}
		e.SetFault(Fault{Kind: FaultRankDies, Rank: new(0)})
		last := ""
		for lines[0].Scan() {
			if text := lines[0].Text(); text != "" {
				last = text
			}
		}
		if last != "data: [DONE]" {
			t.Errorf("the dead rank's stream ended with %q", last)
		}
		if _, err := client.Get(e.RankURL(0) + "/health"); err == nil {
			t.Error("the dead rank answers")
		}
		if status, _ := get(t, e.RankURL(1)+"/health"); status != http.StatusOK {
			t.Errorf("the other rank's health is %d", status)
		}
		if !lockstep {
			scan(t, lines[1], 400)
			continue
		}
		more := make(chan bool)
		go func() {
			defer close(more)
			for lines[1].Scan() {
				more <- true
			}
		}()
		for hangs := false; !hangs; {
			select {
			case _, open := <-more:
				if !open {
					t.Fatal("the other rank's stream went on to its end")
				}
			case <-time.After(time.Second):
				hangs = true
			}
		}
		e.ClearFaults()
		hangUp()
		for range more {
		}
	}
}

// scan reads so many lines.
func scan(t *testing.T, lines *bufio.Scanner, n int) {
	t.Helper()
	for i := range n {
		if !lines.Scan() {
			t.Fatalf("the stream ends after %d lines: %v", i, lines.Err())
		}
	}
}
