package senttext

import (
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
		h.Record(of, on, chunks[:2], Sighting{Held: time.Now()})
		h.Record(of, on, chunks[3:], Sighting{Held: time.Now()}) // there is a gap before it
		for name, c := range map[string]struct {
			of   Salted
			on   Server
			ask  []tokens.Chunk
			want int
		}{
			"what it was sent":     {of, on, chunks[:2], 2},
			"its beginning":        {of, on, chunks[:1], 1},
			"up to the gap":        {of, on, chunks, 2},
			"behind the gap":       {of, on, chunks[3:], 1},
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
		h.Record(of, on, chunks, Sighting{Held: time.Now().Add(time.Second)})
		if got := h.CachedTokens(of, on, chunks); got != 2*ChunkTokens {
			t.Errorf("%d tokens before the others come", got)
		}
		h.seen[chunkOn{of, on, chunks[2]}] = Sighting{}
		time.Sleep(life)
		if got := h.CachedTokens(of, on, chunks); got != 2*ChunkTokens {
			t.Errorf("two minutes later: %d tokens", got)
		}
		time.Sleep(time.Nanosecond)
		if got := h.CachedTokens(of, on, chunks); got != 0 {
			t.Errorf("longer than that: %d tokens", got)
		}
		h.Record(of, on, chunks[:1], Sighting{Held: time.Now()}) // it is sent that again
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
		h.Record(of, on, chunks[:2], Sighting{Held: time.Now(), Computes: until})
		h.Record(of, on, chunks[2:], Sighting{Held: time.Now()})
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
	h.Record(of, on, chunks[:2], Sighting{Held: time.Now()})
	for range 2 { // it is tried there again
		h.Record(of, on, chunks, Sighting{Held: time.Now(), Computes: until})
		if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 4 || held != 4*ChunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens", n, held)
		}
		h.Withdraw(of, on, chunks, until)
		if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 0 || held != 2*ChunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens after that was taken back", n, held)
		}
	}
}

// So many chunks are remembered: the oldest make room, one for one.
func TestHistory_TheOldestMakeRoom(t *testing.T) {
	h, of, on := New(), Salted{Model: "m"}, Server{"s:1", 7}
	all := chunksOf("a", size+3)
	h.Record(of, on, all[:size], Sighting{Held: time.Now()})
	h.Record(of, on, all[:size], Sighting{Held: time.Now()}) // known already
	if len(h.seen) != size || len(h.oldest) != size {
		t.Fatalf("%d chunks are remembered, %d in the ring", len(h.seen), len(h.oldest))
	}
	for i := range 3 {
		h.Record(of, on, all[size+i:size+i+1], Sighting{Held: time.Now()})
		if h.CachedTokens(of, on, all[i:i+1]) != 0 || h.CachedTokens(of, on, all[i+1:i+2]) == 0 || len(h.seen) != size {
			t.Errorf("with %d more the oldest %d are not forgotten, or one more is; %d are remembered", i+1, i+1, len(h.seen))
		}
	}
}

// Requests record, ask and take back at once.
func TestHistory_ManyAtOnce(t *testing.T) {
	h, of, on, chunks := New(), Salted{Model: "m"}, Server{"s:1", 7}, chunksOf("a", 4)
	until := time.Now().Add(time.Minute)
	h.Record(of, on, chunks, Sighting{Held: time.Now(), Computes: until})
	var all sync.WaitGroup
	for _, do := range []func(){
		func() { h.Record(of, on, chunks, Sighting{Held: time.Now(), Computes: until}) },
		func() { h.Withdraw(of, on, chunks, until) },
		func() { h.CachedTokens(of, on, chunks) },
		func() { h.Computing(of, on, chunks) },
	} {
		for range 2 {
			all.Go(func() {
				for range 100 {
					do()
				}
			})
		}
	}
	all.Wait()
	h.Record(of, on, chunks, Sighting{Held: time.Now(), Computes: until})
	if n, held := h.Computing(of, on, chunks), h.CachedTokens(of, on, chunks); n != 4 || held != 4*ChunkTokens {
		t.Errorf("it computes %d chunks and holds %d tokens", n, held)
	}
}
