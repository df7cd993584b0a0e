package senttext

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// chunksOf are n chunks of one text.
func chunksOf(text string, n int) (all []tokens.Chunk) {
	var c tokens.Chunk
	for i := range n {
		c = tokens.Chunk(uint64(len(text))<<32 | uint64(i+1))
		all = append(all, c)
	}
	return all
}

// A server is believed to hold the beginning of what it was sent lately, and only it, of the
// same weights, model and salt.
func TestHistory_BelievesTheBeginningThatWasSentLately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of, on := New(), Salted{Model: "m"}, Server{"s:1", 7}
		chunks := chunksOf("a", 4)
		h.Record(of, on, 0, chunks[:2], Sighting{Held: time.Now()})
		for name, c := range map[string]struct {
			of   Salted
			on   Server
			ask  []tokens.Chunk
			want int
		}{
			"what it was sent":     {of, on, chunks[:2], 2},
			"its beginning":        {of, on, chunks[:1], 1},
			"more":                 {of, on, chunks, 2},
			"only the rest of it":  {of, on, chunks[2:], 0},
			"nothing":              {of, on, nil, 0},
			"another text":         {of, on, chunksOf("bb", 4), 0},
			"another server":       {of, Server{"s:2", 7}, chunks, 0},
			"it, with new weights": {of, Server{"s:1", 8}, chunks, 0},
			"another model":        {Salted{Model: "n"}, on, chunks, 0},
			"of an adapter":        {Salted{Model: "m", Adapter: "a"}, on, chunks, 0},
			"under another's salt": {Salted{Model: "m", Salt: "x"}, on, chunks, 0},
		} {
			if got := h.CachedTokens(c.of, c.on, c.ask); got != c.want*ChunkTokens {
				t.Errorf("%s: %d tokens, want %d chunks", name, got, c.want)
			}
		}
		h.Record(of, on, 0, chunks, Sighting{Held: time.Now().Add(time.Second)})
		if got := h.CachedTokens(of, on, chunks); got != 2*ChunkTokens {
			t.Errorf("%d tokens before the others come", got)
		}
		time.Sleep(time.Second)
		if got := h.CachedTokens(of, on, chunks); got != 4*ChunkTokens {
			t.Errorf("%d tokens when they are there", got)
		}
		time.Sleep(life)
		if got := h.CachedTokens(of, on, chunks); got != 4*ChunkTokens {
			t.Errorf("two minutes later: %d tokens", got)
		}
		time.Sleep(time.Nanosecond)
		if got := h.CachedTokens(of, on, chunks); got != 0 {
			t.Errorf("longer than that: %d tokens", got)
		}
		h.Record(of, on, 0, chunks[:1], Sighting{Held: time.Now()}) // it is sent that again
		if got := h.CachedTokens(of, on, chunks); got != ChunkTokens {
			t.Errorf("sent again: %d tokens", got)
		}
	})
}

// A server computes what it was sent until a time, or until that is taken back.
func TestHistory_AServerComputesUntilATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of, on, chunks := New(), Salted{Model: "m"}, Server{"s:1", 7}, chunksOf("a", 4)
		until := time.Now().Add(time.Second)
		h.Record(of, on, 0, chunks[:2], Sighting{Held: time.Now(), Computes: until})
		h.Record(of, on, 0, chunks, Sighting{Held: time.Now()})
		if n := h.Computing(of, on, chunks); n != 2 {
			t.Errorf("it computes %d chunks", n)
		}
		time.Sleep(time.Second)
		if n := h.Computing(of, on, chunks); n != 0 {
			t.Errorf("it computes %d chunks after the time", n)
		}
	})
}

// What was believed of a request that failed is taken back, and nothing else: what the server
// held before it, it still holds.
func TestHistory_ForgetsOnlyWhatWasPredicted(t *testing.T) {
	h, of, on, chunks := New(), Salted{Model: "m"}, Server{"s:1", 7}, chunksOf("a", 4)
	until := time.Now().Add(time.Minute)
	h.Withdraw(of, on, chunks, Sighting{Computes: until}) // of nothing
	h.Record(of, on, 0, chunks[:2], Sighting{Held: time.Now()})
	for range 2 { // it is tried there again
		h.Record(of, on, 0, chunks, Sighting{Held: time.Now(), Computes: until})
		if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 4 || held != 4*ChunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens", n, held)
		}
		h.Withdraw(of, on, chunks, Sighting{Computes: until.Add(time.Second)}) // another's
		if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 4 || held != 4*ChunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens after another's was taken back", n, held)
		}
		h.Withdraw(of, on, chunks, Sighting{Computes: until})
		if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 0 || held != 2*ChunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens after that was taken back", n, held)
		}
	}
}

// Of each of 64 servers as much text is remembered as its KV has room for, however much the others
// are sent; and of one that is sent more the latest, a beginning longer than the rest.
func TestHistory_RemembersAsMuchOfEachServerAsItsKVHolds(t *testing.T) {
	const servers, kvTokens = 64, 400_000
	synctest.Test(t, func(t *testing.T) {
		h, of := New(), Salted{Model: "m"}
		on := func(i int) Server { return Server{fmt.Sprint(i), 7} }
		prompt := func(i, n int) []tokens.Chunk { // each of 10,000 tokens
			chunks := chunksOf(fmt.Sprintf("%*d", i+1, n), 10_000/ChunkTokens)
			for k := range chunks {
				chunks[k] += tokens.Chunk(n) << 16
			}
			return chunks
		}
		for n := range 50 {
			for i := range servers {
				h.Record(of, on(i), kvTokens, prompt(i, n), Sighting{Held: time.Now()})
			}
		}
		for i := range servers {
			for n := 10; n < 50; n++ {
				if got := h.CachedTokens(of, on(i), prompt(i, n)); got != 10_000/ChunkTokens*ChunkTokens {
					t.Fatalf("server %d is believed to hold %d tokens of its prompt %d", i, got, n)
				}
			}
		}
		for n := range 200 {
			h.Record(of, on(0), kvTokens, prompt(0, 50+n), Sighting{Held: time.Now()})
		}
		if got := h.CachedTokens(of, on(0), prompt(0, 49)); got != 0 {
			t.Errorf("%d tokens are believed that were sent 2 million tokens ago", got)
		}
		kept := 0
		for _, g := range []*generation{&h.servers[on(0)].recent, &h.servers[on(0)].earlier} {
			for _, r := range g.runs {
				kept += len(r.marks)
			}
		}
		if kept > 2*kvTokens/ChunkTokens {
			t.Errorf("%d chunks are kept, of a KV of %d", kept, kvTokens/ChunkTokens)
		}
		long := chunksOf("a prompt that is longer than what is kept", 2*leastTokens/ChunkTokens+100)
		h.Record(of, on(1), leastTokens, long, Sighting{Held: time.Now()})
		if got := h.CachedTokens(of, on(1), long); got < leastTokens || got > 2*leastTokens {
			t.Errorf("of a prompt that is too long %d tokens are believed to be held", got)
		}
	})
}

// A server that was sent nothing for long is forgotten when another comes: it may have left.
func TestHistory_ForgetsServersThatAreSentNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of, chunks := New(), Salted{Model: "m"}, chunksOf("a", 4)
		h.Record(of, Server{"soon", 7}, 0, chunks, Sighting{Held: time.Now()})
		h.Record(of, Server{"later", 7}, 0, chunks, Sighting{Held: time.Now().Add(time.Minute)})
		time.Sleep(life + time.Second)
		h.Record(of, Server{"new", 7}, 0, chunks, Sighting{Held: time.Now()})
		if h.existing(Server{"soon", 7}) != nil || h.existing(Server{"later", 7}) == nil {
			t.Errorf("%d servers are remembered", len(h.servers))
		}
	})
}

// Whatever was recorded and taken back in whatever order: where a chunk is believed to be held all before it
// are, which the search relies on.
func TestHistory_WhereAChunkIsHeldAllBeforeItAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(500) {
			rng := rand.New(rand.NewPCG(seed, 1))
			h, of, on, chunks := New(), Salted{Model: "m"}, Server{"s:1", 7}, chunksOf("a", 8+int(seed%3)*40)
			type predicted struct {
				n     int
				until time.Time
			}
			var open []predicted
			for step := range 60 {
				time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
				n, s := 1+rng.IntN(len(chunks)), Sighting{Held: time.Now()}
				switch rng.IntN(4) {
				case 0:
					s.Held = s.Held.Add(time.Duration(rng.IntN(30)) * time.Second)
				case 1:
					s.Computes = s.Held.Add(time.Duration(1+rng.IntN(60))*time.Second + time.Duration(step)) // no two at once
					open = append(open, predicted{n, s.Computes})
				case 2:
					if len(open) == 0 {
						continue
					}
					i := rng.IntN(len(open))
					h.Withdraw(of, on, chunks[:open[i].n], Sighting{Computes: open[i].until})
					open = append(open[:i], open[i+1:]...)
					n = 0
				}
				if n > 0 {
					h.Record(of, on, 0, chunks[:n], s)
				}
				held, now := 0, h.now()
				known := h.existing(on).findChunks(saltOf(of), chunks)
				for i := range marksAmong(len(chunks)) {
					if !known.at(i).isHeld(now) {
						continue
					}
					if held++; held <= i {
						t.Fatalf("seed %d, step %d: mark %d is held, and only %d before it", seed, step, i, held-1)
					}
				}
				if got := h.CachedTokens(of, on, chunks); got != coveredBy(held)*ChunkTokens {
					t.Fatalf("seed %d, step %d: %d tokens are held, of %d marks", seed, step, got, held)
				}
			}
		}
	})
}

// Requests record, ask and take back at once.
func TestHistory_ManyAtOnce(t *testing.T) {
	h, of, on, chunks := New(), Salted{Model: "m"}, Server{"s:1", 7}, chunksOf("a", 4)
	until := time.Now().Add(time.Minute)
	h.Record(of, on, 0, chunks, Sighting{Held: time.Now(), Computes: until})
	var all sync.WaitGroup
	for n, do := range []func(n int){
		func(int) { h.Record(of, on, 0, chunks, Sighting{Held: time.Now(), Computes: until}) },
		func(n int) {
			h.Record(of, Server{fmt.Sprint(n), 7}, 0, chunks, Sighting{Held: time.Now(), Computes: until})
		},
		func(int) { h.Withdraw(of, on, chunks, Sighting{Computes: until}) },
		func(int) { h.CachedTokens(of, on, chunks) },
		func(int) { h.Computing(of, on, chunks) },
	} {
		for range 2 {
			all.Go(func() {
				for i := range 100 {
					do(100*n + i)
				}
			})
		}
	}
	all.Wait()
	h.Record(of, on, 0, chunks, Sighting{Held: time.Now(), Computes: until})
	if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 4 || held != 4*ChunkTokens {
		t.Errorf("it computes %d chunks and holds %d tokens", n, held)
	}
}

// Of a long prompt a few chunks less are known to be held than are, and never more.
func TestHistory_OfLongPromptsSomeChunksAreKnown(t *testing.T) {
	h, of, all := New(), Salted{Model: "m"}, chunksOf("a", 1000)
	for i, n := range []int{1, denseChunks - 1, denseChunks, denseChunks + 1, denseChunks + 3, denseChunks + 4, 860, 863} {
		on := Server{fmt.Sprint(i), 7}
		until := time.Now().Add(time.Minute)
		h.Record(of, on, 0, all[:n], Sighting{Held: time.Now(), Computes: until})
		for asked, holds := range map[int]int{n: n, 1000: n, n / 2: n / 2} {
			got := h.CachedTokens(of, on, all[:asked]) / ChunkTokens
			if got > holds || got < holds-(stride-1) || holds <= denseChunks && got != holds {
				t.Errorf("of %d chunks that it was sent %d are known to be held of %d", n, got, asked)
			}
			if computing := h.Computing(of, on, all[:asked]); computing != got {
				t.Errorf("%d are held and %d computed", got, computing)
			}
		}
		if marks := len(marksOf(of, all[:n])); n == 860 && marks != 263 {
			t.Errorf("%d marks", marks)
		}
	}
}

// The clock of a gateway may be set after it was started: what it is told from then on it believes as before.
func TestHistory_ReceivesByAClockThatWasSet(t *testing.T) {
	for _, set := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			own, other, of, on, chunks := New(), New(), Salted{Model: "m", Salt: "s"}, Server{"s:1", 7}, chunksOf("a", 200)
			own.wall.Add(-set.Microseconds()) // as it was when own was started
			other.Share = own.Receive
			seen := Sighting{Held: time.Now(), Computes: time.Now().Add(time.Minute), Shared: true}
			other.Record(of, on, 1<<20, chunks, seen)
			if n, computes := own.CachedTokens(of, on, chunks), own.Computing(of, on, chunks); n != 200*ChunkTokens || computes != 200 {
				t.Errorf("set by %v: %d tokens held, %d chunks computed", set, n, computes)
			}
			other.Withdraw(of, on, chunks, seen)
			if n, computes := own.CachedTokens(of, on, chunks), own.Computing(of, on, chunks); n != 0 || computes != 0 {
				t.Errorf("set by %v and withdrawn: %d tokens held, %d chunks computed", set, n, computes)
			}
		})
	}
}

// What one history is told of another's prompts it believes as if it had sent them, until they are
// taken back or two minutes old; of other times than ours it believes nothing.
func TestHistory_ReceivesWhatAnotherWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other, of, on, chunks := New(), New(), Salted{Model: "m", Salt: "s"}, Server{"s:1", 7}, chunksOf("a", 200)
		var told []Sent
		other.Share = func(s Sent) {
			told = append(told, s)
			own.Receive(s)
		}
		until := time.Now().Add(time.Minute)
		seen := Sighting{Held: time.Now(), Computes: until, Shared: true}
		other.Record(of, on, 1<<20, chunks, seen)
		other.Record(of, on, 1<<20, chunksOf("bb", 4), Sighting{Held: time.Now()}) // not to be told
		if n, computes := own.CachedTokens(of, on, chunks), own.Computing(of, on, chunks); n != 200*ChunkTokens || computes != 200 {
			t.Errorf("%d tokens held, %d chunks computed", n, computes)
		}
		if n := own.CachedTokens(Salted{Model: "m", Salt: "t"}, on, chunks); n != 0 {
			t.Errorf("%d tokens held under another's salt", n)
		}
		other.Withdraw(of, on, chunks, seen)
		if n, computes := own.CachedTokens(of, on, chunks), own.Computing(of, on, chunks); n != 0 || computes != 0 || len(told) != 2 {
			t.Errorf("%d tokens held, %d chunks computed, told %d times", n, computes, len(told))
		}
		for _, off := range []time.Duration{-life, life, -time.Hour, 1000 * time.Hour} {
			s := told[0]
			s.Held = time.Now().Add(off)
			own.Receive(s)
		}
		if n := own.CachedTokens(of, on, chunks); n != 0 {
			t.Errorf("%d tokens held that were sent at another time", n)
		}
		for i := range mostServers + 10 {
			s := told[0]
			s.Server, s.Marks = Server{ID: fmt.Sprint(i)}, s.Marks[:1]
			own.Receive(s)
		}
		if n := own.count(); n != mostServers {
			t.Errorf("something is remembered of %d servers", n)
		}
	})
}
