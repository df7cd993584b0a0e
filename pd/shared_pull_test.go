package pd

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/senttext"
)

// Requests with one beginning that come together move its KV to a decode server once: engines would pull it for each.
func TestDecode_PullsOnceWhatPromptsShare(t *testing.T) {
	t.Parallel()
	const prompt, requests, tokenBytes = 4096, 6, 1 << 10
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) {
		cfg.KVBytesPerToken, cfg.LinkBytesPerSecond = tokenBytes, 20*prompt*tokenBytes // it takes 50 ms alone
	}})
	f.identified()
	var all sync.WaitGroup
	for range requests {
		st := f.longRequest(prompt, prompt)
		body := `{"model":"` + testModel + `","stream":true,"max_tokens":2,"prompt":[` + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(st.bind.prefix.tokens.IDs)), ","), "[]") + `]}`
		st.req.Body, st.req.Stream = requestOf(t, api.Completions, body).Body, true
		st.form = f.formOf(st.req)
		all.Go(func() {
			b, err := f.choose(t.Context(), st)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.release()
			if failed := f.Orchestrator.prefill(t.Context(), st, b); failed != nil {
				t.Error(failed)
			} else if failed := f.Orchestrator.decode(t.Context(), st, b); failed != nil {
				t.Error(failed)
			} else {
				readToEnd(f.relay(t.Context(), st, b))
			}
		})
	}
	all.Wait()
	if got := f.bytesPulled(f.decode[0]) / tokenBytes; got < prompt-16 || got > prompt*3/2 {
		t.Errorf("%d tokens were pulled for %d requests of the same %d", got, requests, prompt)
	}
	if len(f.pulls.under) > 0 {
		t.Errorf("pulls are believed to be under way: %v", f.pulls.under)
	}
}

var bytesPulledSum = regexp.MustCompile(`(?m)^vllm:nixl_bytes_transferred_sum\S* (\S+)`)

// bytesPulled is the bytes of KV that an engine has pulled from others.
func (f *engineFleet) bytesPulled(e *engine.Engine) int {
	f.t.Helper()
	resp, err := client.Get(e.URL() + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	found := bytesPulledSum.FindSubmatch(page)
	if found == nil {
		f.t.Fatal("the engine does not say what it has pulled")
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return int(n)
}

// testLeading is the leading tokens of a prompt that begins with so many of those of all others.
func testLeading(shared, tokens int, own uint32) leadingTokens {
	l := leadingTokens{of: senttext.Salted{Model: "m"}, ids: make([]uint32, tokens), tokens: tokens}
	for i := shared; i < tokens; i++ {
		l.ids[i] = own
	}
	return l
}

// A leg waits for a pull that brings it at least as much as that brings besides, and for no other.
func TestSharedPulls_Await(t *testing.T) {
	salted := testLeading(10_000, 10_200, 1)
	salted.of.Salt = "another"
	for name, c := range map[string]struct {
		server string
		prompt leadingTokens
		held   int
		waits  bool
		has    int
	}{
		"a sibling":                        {"d", testLeading(10_000, 10_100, 1), 0, true, 10_000},
		"a sibling that has some of it":    {"d", testLeading(10_000, 10_100, 1), 4000, true, 10_000},
		"a sibling that has most of it":    {"d", testLeading(10_000, 10_100, 1), 9500, false, 9500},
		"it shares half of what is pulled": {"d", testLeading(6000, 20_000, 1), 0, true, 6000},
		"it shares less":                   {"d", testLeading(4000, 20_000, 1), 0, false, 0},
		"on another server":                {"e", testLeading(10_000, 10_100, 1), 0, false, 0},
		"of another salt":                  {"d", salted, 0, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var s sharedPulls
			first, _ := s.await(t.Context(), time.Now().Add(time.Minute), "d", testLeading(10_000, 10_200, 2), 10_200, 0)
			began := time.Now()
			time.AfterFunc(time.Second, func() { s.end("d", first, true) })
			own, has := s.await(t.Context(), time.Now().Add(time.Minute), c.server, c.prompt, len(c.prompt.ids), c.held)
			if waited := time.Since(began) > 0; waited != c.waits || has != c.has {
				t.Errorf("%s: it waits %v and has %d tokens then", name, waited, has)
			}
			if pulls := len(c.prompt.ids)-has >= 1024; (own != nil) != pulls {
				t.Errorf("%s: noted %v", name, own)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			s.end(c.server, own, true)
			s.end(c.server, own, false)
			if len(s.under) > 0 {
				t.Errorf("%s: left: %v", name, s.under)
			}
		})
	}
}

// Of those that waited for a pull that failed one pulls, and the others wait for it.
func TestSharedPulls_NextPullsWhereOneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedPulls
		prompt := testLeading(10_000, 10_000, 0)
		failing, _ := s.await(t.Context(), time.Now().Add(time.Minute), "d", prompt, 10_000, 0)
		pulls := make(chan *pull, 5)
		for range cap(pulls) {
			go func() {
				own, _ := s.await(t.Context(), time.Now().Add(time.Minute), "d", prompt, 10_000, 0)
				pulls <- own
			}()
		}
		synctest.Wait()
		s.end("d", failing, false)
		synctest.Wait()
		if len(pulls) != 1 {
			t.Fatalf("%d pull", len(pulls))
		}
		s.end("d", <-pulls, true)
		for range cap(pulls) - 1 {
			if own := <-pulls; own != nil {
				t.Error("one pulls what another has brought")
			}
		}
	})
}

// What has come lately is there, whether KV events say so or not: nobody waits for it again. Later it is not relied on.
func TestSharedPulls_WhatHasComeIsNotAwaitedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedPulls
		prompt := testLeading(10_000, 10_200, 1)
		for range 2 * mostCame {
			first, _ := s.await(t.Context(), time.Now().Add(time.Minute), "d", testLeading(10_000, 10_200, 2), 10_200, 0)
			s.end("d", first, true)
			if own, has := s.await(t.Context(), time.Now().Add(time.Minute), "d", prompt, 10_200, 0); own != nil || has != 10_000 {
				t.Errorf("it pulls %v, and has %d tokens", own, has)
			}
			time.Sleep(2 * cameLife)
			synctest.Wait()
			if len(s.came) > 0 {
				t.Errorf("left: %v", s.came)
			}
			own, has := s.await(t.Context(), time.Now().Add(time.Minute), "d", prompt, 10_200, 0)
			if own == nil || has != 0 {
				t.Errorf("later it pulls %v, and has %d tokens", own, has)
			}
			s.end("d", own, false)
		}
	})
}

// A client that leaves, and a hand-off that gets old, wait no longer.
func TestSharedPulls_AwaitEndsWithItsContextAndInTime(t *testing.T) {
	for name, x := range map[string]struct{ context, until time.Duration }{"the client leaves": {time.Second, time.Minute}, "too late": {time.Minute, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var s sharedPulls
			prompt, began := testLeading(10_000, 10_000, 0), time.Now()
			s.await(t.Context(), began.Add(x.until), "d", prompt, 10_000, 0)
			ctx, cancel := context.WithTimeout(t.Context(), x.context)
			defer cancel()
			own, has := s.await(ctx, began.Add(x.until), "d", prompt, 10_000, 0)
			if took := time.Since(began); own == nil || has != 0 || took != time.Second {
				t.Errorf("%s: it pulls %v, and has %d tokens after %v", name, own != nil, has, took)
			}
		})
	}
}

// A pull may end by a timer when its request has ended: the room of that is nobody else's then. One that pulls nothing to
// speak of gives it back.
func TestAwaitShared_KeepsTheRoomOfWhatPulls(t *testing.T) {
	for held, pulls := range map[int]bool{0: true, 13_990: false} {
		f := newTestFleet(t, 1, testPrompt(14_000))
		f.Binder.Cost.DecodeReuse = true
		st, b := f.bound(t, false)
		st.room, b.cachedTokens = new(requestRoom), held
		st.bind.prefix = &prefix{known: true, tokens: tokens.Tokens{IDs: make([]uint32, 14_000)}}
		tr := st.transfer(b)
		b.handoff = tr.Handoff()
		b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":14000},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), time.Now())
		f.awaitShared(t.Context(), st, b)
		if (b.pull != nil) != pulls || (st.room == nil) != pulls {
			t.Errorf("%d tokens are there: it pulls %v, and gives the room back %v", held, b.pull != nil, st.room != nil)
		}
	}
}

// Prompts of which no tokens are known are compared by their text, and images by nothing but that.
func TestLeadingTokens_Common(t *testing.T) {
	of := func(media int, text ...tokens.Chunk) *prefix {
		p := &prefix{model: "m", known: true, text: text}
		p.tokens.IDs = make([]uint32, 64*len(text))
		p.tokens.Media = make([]tokens.Medium, media)
		return p
	}
	guessed := &prefix{model: "m", known: true, tokens: tokens.Tokens{Chunks: []tokens.Chunk{1, 2, 9}}}
	for name, c := range map[string]struct {
		mine, theirs *prefix
		want         int
	}{
		"by tokens":          {of(0, 1, 2, 3), of(0, 1, 2, 4, 5), 192},
		"an image":           {of(1, 1, 2, 3), of(1, 1, 2, 4, 5), 128},
		"by text":            {of(0, 1, 2, 3), guessed, 128},
		"nothing but text":   {guessed, guessed, 192},
		"nothing is alike":   {of(1, 7), guessed, 0},
		"nothing is known":   {nil, guessed, 0},
		"its tokens are not": {&prefix{model: "m"}, guessed, 0},
	} {
		mine, _ := leadingTokensOf(c.mine, 192)
		theirs, _ := leadingTokensOf(c.theirs, 192)
		if got := mine.common(&theirs); got != c.want {
			t.Errorf("%s: %d tokens in common, want %d", name, got, c.want)
		}
	}
}

// Two slices are alike up to their first difference, wherever it is, or to the end of the shorter one.
func TestEqual_EndsAtTheFirstDifference(t *testing.T) {
	whole := make([]uint32, 200)
	for i := range whole {
		whole[i] = uint32(i)
	}
	for n := range whole {
		other := slices.Clone(whole)
		other[n]++
		if got := equal(whole, other); got != n {
			t.Errorf("%d are alike of slices that differ at %d", got, n)
		}
		if got, same := equal(slices.Clone(whole[:n]), whole), equal(whole[:n], whole); got != n || same != n {
			t.Errorf("%d and %d are alike of a beginning of %d", got, same, n)
		}
	}
}
