package top

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/gateway/live"
	"github.com/tandem-gateway/tandem/pd/cost"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

func value[T any](v T) *T { return &v }

// state is a gateway with something of everything.
func state() live.State {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	leg := func(breaker string, requests int, queue float64) *live.Leg {
		return &live.Leg{Breaker: breaker, Requests: requests, QueueMs: queue}
	}
	lately := live.Point{
		First: 70, Answers: 66, Failed: 1, TTFT50: 53.1, TTFT99: 1631, Gaps: 900, ITL50: 7.12, ITL99: 137.5, Cached: value(0.843), Predicted: value(0.83),
		Parts: live.Parts{Wait: 0.9, Prefill: 35.8, Transfer: 45.2, Aggregated: 0.1},
	}
	gateway := live.Gateway{Replica: "tandem-0", Version: "v1.2.3", Ready: true, Waiting: 3, InFlight: 12}
	return live.State{
		At: at, Gateway: gateway, Gateways: []live.Gateway{gateway},
		Servers: []live.Server{
			{ID: "10.0.0.1:8000", Role: "prefill", State: "alive", Prefill: leg("closed", 4, 81.2), KVUsed: value(0.4), Running: value(3.0), Waiting: value(1.0)},
			{ID: "10.0.0.2:8000", Role: "prefill", State: "down", Reason: "connection refused", Prefill: &live.Leg{Breaker: "open", Reason: "connection refused"}},
			{ID: "prefill-with-a-long-name.models.svc:8000/dp1", Role: "prefill", State: "alive", Draining: true, Prefill: leg("closed", 1, 2000)},
			{ID: "10.0.1.1:8000", Role: "decode", State: "alive", Decode: leg("half-open", 7, 0), KVUsed: value(0.98), Adapters: []live.Adapter{{Name: "sql", Running: true}, {Name: "legal"}}},
			{ID: "10.0.2.1:8000", Role: "both", State: "unresponsive", Prefill: leg("closed", 1, 10), Decode: leg("closed", 1, 0)},
		},
		Links: live.Links{Pairs: []live.LinkPair{
			{Prefill: 0, Decode: 3, Link: live.Link{Slower: 6.24, Blamed: "pair", Measured: 7.9, Transfers: 40, FailedAt: &at}},
			{Prefill: 2, Decode: 3, Link: live.Link{Slower: 1.6, Blamed: "prefill", Measured: 1.7, Transfers: 9}},
			{Prefill: 0, Decode: 4, Link: live.Link{Slower: 1, Measured: 1, Transfers: 900}},
		}},
		History: live.History{Lately: lately},
		Scaling: []live.Pool{{Model: "m", Role: "prefill", Wanted: value(3), Ready: 2, Pending: 1, Reason: "demand"}, {Model: "m", Role: "decode", Wanted: value(2), Ready: 2, Reason: "settle"}},
		Decisions: []live.Decision{
			{At: at, Outcome: "served", PromptTokens: 3434, WaitedMs: 1, Chosen: cost.Explained{Prefill: "10.0.0.1:8000", Decode: "10.0.1.1:8000", First: 128.3, Queue: 81.2, Compute: 34.5, Transfer: 4.7, Step: 7.8},
				Measured: live.Measured{First: value(131.0), CachedTokens: value(2464), OutputTokens: value(24)}},
			{At: at, Outcome: "failed", PromptTokens: 12, Chosen: cost.Explained{Decode: "gone:8000", First: 20, Step: 20}},
			{At: at, Outcome: "client left", PromptTokens: 12, Chosen: cost.Explained{Decode: "10.0.1.1:8000", First: 20, Step: 20}},
		},
	}
}

// What is drawn can be disputed: testdata has it, whole and on terminals of other sizes.
func TestDraw_Golden(t *testing.T) {
	s := state()
	fleet := state()
	fleet.Gateways = append(fleet.Gateways, live.Gateway{Replica: "tandem-1", Ready: true, Waiting: 1, InFlight: 4, Lately: fleet.History.Lately},
		live.Gateway{Replica: "tandem-2", Silent: "connection refused"}, live.Gateway{Replica: "tandem-3", Why: "draining", InFlight: 1},
		live.Gateway{Replica: "tandem-4", Ready: true, Apart: true})
	fleet.Gateway.Apart = true
	fleet.Decisions[0].Gateway, fleet.Decisions[1].Gateway = "tandem-1", "tandem-7d9f8b6c5d-x2x4z"
	empty := live.State{Gateway: live.Gateway{Why: "no decode server answers"}}
	for name, x := range map[string]struct {
		state  *live.State
		size   Size
		colour bool
	}{
		"once":   {state: &s},
		"usual":  {&s, Size{120, 40}, true},
		"narrow": {&s, Size{60, 18}, false},
		"fleet":  {state: &fleet},
		"small":  {&fleet, Size{100, 24}, true},
		"empty":  {state: &empty},
	} {
		got := strings.Join(Draw(x.state, x.size, x.colour), "\n") + "\n"
		file := filepath.Join("testdata", name+".txt")
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

// What is wanted of a pool while that is not known is no zero.
func TestDraw_WantedIsUnknown(t *testing.T) {
	s := state()
	s.Scaling = []live.Pool{{Model: "m", Role: "decode", Ready: 2, Reason: "stale"}}
	if got := strings.Join(Draw(&s, Size{}, false), "\n"); !strings.Contains(got, "m decode: wanted -, ready 2,") {
		t.Error(got)
	}
}

// A gateway that is ten seconds old and has given ten answers a second has not given one in six.
func TestDraw_RateOfAYoungGateway(t *testing.T) {
	s := state()
	s.History.Lately.Answers, s.History.Lately.Seconds = 100, 10
	if got := strings.Join(Draw(&s, Size{}, false), "\n"); !strings.Contains(got, "last minute: 10.0 answers/s") {
		t.Error(got)
	}
}

// A model that is not there is said to be none, and not to have answered nothing.
func TestDraw_NamesAModelThatIsNone(t *testing.T) {
	for model, none := range map[string]bool{"": false, "m": false, "sql": false, "asked": false, "nope": true} {
		s := state()
		s.Servers[0].Models, s.Models, s.History.Model = []string{"m"}, []live.Model{{ID: "asked"}}, model
		if got := strings.Join(Draw(&s, Size{}, false), "\n"); strings.Contains(got, "no server serves nope") != none || strings.Contains(got, "answers/s") == none {
			t.Errorf("%q: %s", model, got)
		}
	}
}

// A view is never wider or higher than the terminal, however small that is, and of many servers it
// says how many are left out.
func TestDraw_FitsTheTerminal(t *testing.T) {
	s := state()
	for range 7 {
		s.Servers = append(s.Servers, s.Servers...)
	}
	for _, size := range []Size{{80, 24}, {200, 50}, {20, 5}, {1, 1}, {40, 3}} {
		lines := Draw(&s, size, false)
		if len(lines) > size.Height {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > size.Width {
				t.Errorf("%v: %q", size, l)
			}
		}
	}
	if text := strings.Join(Draw(&s, Size{80, 24}, false), "\n"); !strings.Contains(text, "more servers") || !strings.Contains(text, "outcome") {
		t.Error(text)
	}
}

// screen is a terminal whose keys a test types.
type screen struct {
	mu      sync.Mutex // guards drawn, which tests look at while it is drawn
	drawn   strings.Builder
	keys    chan byte
	resized chan os.Signal
	size    Size
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drawn.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drawn.String()
}

func newScreen() *screen {
	return &screen{keys: make(chan byte), resized: make(chan os.Signal), size: Size{80, 24}}
}

// watch watches a state, and returns how often it was read and what ended it.
func (s *screen) watch(ctx context.Context, read func() (live.State, error)) <-chan error {
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, Terminal{Keys: s.keys, Resized: s.resized, Size: func() Size { return s.size }, Out: s}, 2*time.Second,
			func(context.Context) (live.State, error) { return read() })
	}()
	return ended
}

// The view is drawn anew every interval, and at once in its new size after a resize; q and Ctrl-C end
// it, and the terminal is given back as it was.
func TestWatch_DrawsUntilAKeyEndsIt(t *testing.T) {
	for _, key := range []byte{'q', ctrlC} {
		synctest.Test(t, func(t *testing.T) {
			s, reads := newScreen(), 0
			ended := s.watch(t.Context(), func() (live.State, error) { reads++; return state(), nil })
			synctest.Wait()
			time.Sleep(2*time.Second + time.Millisecond)
			synctest.Wait()
			if drawn := strings.Count(s.String(), "\x1b[H"); reads != 2 || drawn != 2 {
				t.Errorf("read %d times, drawn %d times in two seconds", reads, drawn)
			}
			s.size = Size{10, 2}
			s.resized <- os.Interrupt
			s.keys <- 'x' // means nothing
			s.keys <- key
			if err := <-ended; err != nil || reads != 2 {
				t.Errorf("%v, read %d times", err, reads)
			}
			if text := s.String(); !strings.HasPrefix(text, enter) || !strings.HasSuffix(text, "\x1b[Htandem  t…\x1b[K\r\nall model…\x1b[K\x1b[J"+leave) {
				t.Errorf("%q", text[max(0, len(text)-120):])
			}
		})
	}
}

// A gateway that does not answer is said above what was last known, and the view goes on when it
// answers again; the end of the context, or of the keys, ends it.
func TestWatch_GoesOnWhileTheGatewayIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, away := newScreen(), new(atomic.Bool)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		ended := s.watch(ctx, func() (live.State, error) {
			if away.Load() {
				return live.State{}, errors.New("ask the gateway:\nconnection refused")
			}
			return state(), nil
		})
		synctest.Wait()
		away.Store(true)
		last := func() string {
			time.Sleep(2 * time.Second)
			synctest.Wait()
			return s.String()[strings.LastIndex(s.String(), "\x1b[H"):]
		}
		if view := last(); !strings.HasPrefix(view, "\x1b[Hask the gateway: connection refused\x1b[K\r\ntandem  tandem-0") || strings.Count(view, "\r\n") > 23 {
			t.Errorf("%q", view)
		}
		away.Store(false)
		if view := last(); strings.Contains(view, "refused") {
			t.Errorf("%q", view)
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		other := newScreen()
		close(other.keys)
		if err := <-other.watch(t.Context(), func() (live.State, error) { return state(), nil }); err != nil {
			t.Error(err)
		}
	})
}
