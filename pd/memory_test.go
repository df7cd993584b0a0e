package pd

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/queue"
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
		h, of, on := newHistory(), saltedModel{model: "m"}, serverVersion{"s:1", 7}
		chunks := chunksOf("a", 4)
		h.record(of, on, chunks[:2], sighting{held: time.Now()})
		h.record(of, on, chunks[3:], sighting{held: time.Now()}) // there is a gap before it
		for name, c := range map[string]struct {
			of   saltedModel
			on   serverVersion
			ask  []tokens.Chunk
			want int
		}{
			"what it was sent":     {of, on, chunks[:2], 2},
			"its beginning":        {of, on, chunks[:1], 1},
			"up to the gap":        {of, on, chunks, 2},
			"behind the gap":       {of, on, chunks[3:], 1},
			"nothing":              {of, on, nil, 0},
			"another text":         {of, on, chunksOf("bb", 4), 0},
			"another server":       {of, serverVersion{"s:2", 7}, chunks, 0},
			"it, with new weights": {of, serverVersion{"s:1", 8}, chunks, 0},
			"another model":        {saltedModel{model: "n"}, on, chunks, 0},
			"of an adapter":        {saltedModel{model: "m", adapter: "a"}, on, chunks, 0},
			"under another's salt": {saltedModel{model: "m", salt: "x"}, on, chunks, 0},
		} {
			if got := h.cachedTokens(c.of, c.on, c.ask); got != c.want*chunkTokens {
				t.Errorf("%s: %d tokens, want %d chunks", name, got, c.want)
			}
		}
		h.record(of, on, chunks, sighting{held: time.Now().Add(time.Second)})
		if got := h.cachedTokens(of, on, chunks); got != 2*chunkTokens {
			t.Errorf("%d tokens before the others come", got)
		}
		h.seen[chunkOn{of, on, chunks[2]}] = sighting{}
		time.Sleep(historyLife)
		if got := h.cachedTokens(of, on, chunks); got != 2*chunkTokens {
			t.Errorf("two minutes later: %d tokens", got)
		}
		time.Sleep(time.Nanosecond)
		if got := h.cachedTokens(of, on, chunks); got != 0 {
			t.Errorf("longer than that: %d tokens", got)
		}
		h.record(of, on, chunks[:1], sighting{held: time.Now()}) // it is sent that again
		if got := h.cachedTokens(of, on, chunks); got != chunkTokens {
			t.Errorf("sent again: %d tokens", got)
		}
	})
}

// A server computes what it was sent until a time, or until that is taken back.
func TestHistory_AServerComputesUntilATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, of, on, chunks := newHistory(), saltedModel{model: "m"}, serverVersion{"s:1", 7}, chunksOf("a", 4)
		until := time.Now().Add(time.Second)
		h.record(of, on, chunks[:2], sighting{held: time.Now(), computes: until})
		h.record(of, on, chunks[2:], sighting{held: time.Now()})
		if n := h.computing(of, on, chunks); n != 2 {
			t.Errorf("it computes %d chunks", n)
		}
		time.Sleep(time.Second)
		if n := h.computing(of, on, chunks); n != 0 {
			t.Errorf("it computes %d chunks after the time", n)
		}
	})
}

// What was believed of a request that failed is taken back, and nothing else: what the server
// held before it, it still holds.
func TestHistory_ForgetsOnlyWhatWasPredicted(t *testing.T) {
	h, of, on, chunks := newHistory(), saltedModel{model: "m"}, serverVersion{"s:1", 7}, chunksOf("a", 4)
	until := time.Now().Add(time.Minute)
	h.record(of, on, chunks[:2], sighting{held: time.Now()})
	for range 2 { // it is tried there again
		h.record(of, on, chunks, sighting{held: time.Now(), computes: until})
		if n, held := h.computing(of, on, chunks), h.cachedTokens(of, on, chunks); n != 4 || held != 4*chunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens", n, held)
		}
		h.withdraw(of, on, chunks, until)
		if n, held := h.computing(of, on, chunks), h.cachedTokens(of, on, chunks); n != 0 || held != 2*chunkTokens {
			t.Errorf("it computes %d chunks and holds %d tokens after that was taken back", n, held)
		}
	}
}

// So many chunks are remembered: the oldest make room, one for one.
func TestHistory_TheOldestMakeRoom(t *testing.T) {
	h, of, on := newHistory(), saltedModel{model: "m"}, serverVersion{"s:1", 7}
	all := chunksOf("a", historySize+3)
	h.record(of, on, all[:historySize], sighting{held: time.Now()})
	h.record(of, on, all[:historySize], sighting{held: time.Now()}) // known already
	if len(h.seen) != historySize || len(h.oldest) != historySize {
		t.Fatalf("%d chunks are remembered, %d in the ring", len(h.seen), len(h.oldest))
	}
	for i := range 3 {
		h.record(of, on, all[historySize+i:historySize+i+1], sighting{held: time.Now()})
		if h.cachedTokens(of, on, all[i:i+1]) != 0 || h.cachedTokens(of, on, all[i+1:i+2]) == 0 || len(h.seen) != historySize {
			t.Errorf("with %d more the oldest %d are not forgotten, or one more is; %d are remembered", i+1, i+1, len(h.seen))
		}
	}
}

func TestQueueConfig_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*queue.Config)
		valid  bool
	}{
		"the default":   {func(*queue.Config) {}, true},
		"none may wait": {func(c *queue.Config) { c.MaxWaiting = 0 }, true},
		"one at a time": {func(c *queue.Config) { c.MaxInFlight, c.MaxBytes, c.MaxWait = 1, 1, 1 }, true},
		"none at all":   {func(c *queue.Config) { c.MaxInFlight = 0 }, false},
		"fewer":         {func(c *queue.Config) { c.MaxWaiting = -1 }, false},
		"no bytes":      {func(c *queue.Config) { c.MaxBytes = 0 }, false},
		"no time":       {func(c *queue.Config) { c.MaxWait = 0 }, false},
	} {
		cfg := queue.Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What others write into the channel and cannot be read asks for nothing.
func TestTokenSync_WhatCannotBeReadIsIgnored(t *testing.T) {
	var asked []string
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		asked = append(asked, model)
		return nil, fmt.Errorf("none")
	})
	defer l.Close()
	s := NewTokenSync(l, nil, "test:", nil)
	name := strings.Repeat("m", 256)
	for _, message := range []string{
		"", "\x00prefix", "\x05four", "\xff", "\x80\x02" + name, "\x01" + "m" + strings.Repeat("x", maxLearnedPrefix+300),
	} {
		s.take([]byte(message))
	}
	if l.openings.Wait(); len(asked) != 0 {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
	s.take([]byte("\x01mprefix"))
	s.take(append([]byte{0xff, 0x01}, name[:255]...))
	if l.openings.Wait(); len(asked) != 2 || asked[0] != "m" || asked[1] != name[:255] {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
}
