package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
)

// diesOf lets every server die that gets a leg on which the predicate holds: its connection
// breaks with an error, and it takes no new ones.
func (f *engineFleet) diesOf(broken error, kills func(*http.Request) bool) {
	through := f.Transport
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if !kills(r) {
			return through.RoundTrip(r)
		}
		for _, e := range append(f.prefill[:len(f.prefill):len(f.prefill)], f.decode...) {
			if e.URL() == "http://"+r.URL.Host {
				e.SetFault(engine.Fault{Kind: engine.FaultRefuse})
			}
		}
		return nil, broken
	})
}

// down is how many servers are known to be down.
func (f *engineFleet) down() (servers int) {
	for _, s := range f.Fleet.Servers() {
		if !s.Health().Up {
			servers++
		}
	}
	return servers
}

// A body that many send, and that is answered, is not what servers die of that it is on.
func TestRun_ABodyThatIsAnsweredIsNotHeldBack(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{decode: 4})
		dies := false
		f.diesOf(io.ErrUnexpectedEOF, func(*http.Request) bool { now := dies; dies = false; return now })
		for range 3 {
			dies = true
			f.served(f.asks(api.Chat, more(api.Chat, stream)))
		}
		if down, list := f.down(), f.Suspects.List(time.Now()); down != 3 || len(list) != 0 {
			t.Errorf("%d servers are down, suspected are %+v", down, list)
		}
	}
}

// A request of which two servers have died is refused, then and when it comes again: the other
// servers live, and other requests are served.
func TestRun_AQueryOfDeathIsHeldBack(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{decode: 4})
		f.diesOf(io.ErrUnexpectedEOF, func(r *http.Request) bool { return r.Header.Get("X-Kills") != "" })
		deadly := f.asks(api.Chat, more(api.Chat, stream))
		deadly.Header.Set("X-Kills", "yes")
		for range 2 {
			if _, err := f.run(t.Context(), deadly); !errors.Is(err, retry.ErrQuarantined) {
				t.Errorf("%v", err)
			}
		}
		if down, list := f.down(), f.Suspects.List(time.Now()); down != 2 || len(list) != 1 || len(list[0].Servers) != 2 || list[0].Causes[0] != "it was computing the prompt and decoding" {
			t.Errorf("%d servers are down, suspected are %+v", down, list)
		}
		f.served(f.asks(api.Chat, `,"max_tokens":9`))
		f.nothingIsLeft()
		f.wantMetrics(map[string]float64{"tandem_quarantined_requests": 1, "tandem_retries_total": 1})
	}
}

// diesInStream lets every decode server die in the middle of a stream: the connection breaks, and it takes no new ones.
func (f *engineFleet) diesInStream() {
	through := f.Transport
	for _, e := range f.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 4})
	}
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		resp, err := through.RoundTrip(r)
		for _, e := range f.decode {
			if err == nil && e.URL() == "http://"+r.URL.Host {
				resp.Body = &dyingStream{resp.Body, e}
			}
		}
		return resp, err
	})
}

// dyingStream is the body of an answer, whose engine dies where it breaks.
type dyingStream struct {
	io.ReadCloser
	engine *engine.Engine
}

func (d *dyingStream) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		d.engine.SetFault(engine.Fault{Kind: engine.FaultRefuse})
	}
	return n, err
}

// A stream that breaks counts against its request, and takes its server out, where it cannot be continued too. The log
// says why it cannot.
func TestRun_AQueryOfDeathIsHeldBackWhoseStreamCannotBeContinued(t *testing.T) {
	for name, c := range map[string]struct {
		dialect *api.Dialect
		more    string
		turnOff bool
		why     []string // of each of the two streams
	}{
		"streams are not continued": {api.Chat, "", true, nil},
		"logprobs":                  {api.Chat, `,"logprobs":true`, false, twice("the request has the field logprobs")},
		"a seed":                    {api.Completions, `,"seed":7`, false, twice("the request has the field seed")},
		"two answers":               {api.Chat, `,"n":2`, false, twice(errAggregated.Error())},
		"a message":                 {api.Messages, "", false, twice("answers of its API are not followed")},
		"a response":                {api.Responses, "", false, twice("answers of its API are not followed")},
	} {
		var log strings.Builder
		f := newEngineFleet(t, fleetShape{decode: 3, orchestrator: func(o *Orchestrator) {
			o.Config.ContinueStreams = !c.turnOff
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
		}})
		f.diesInStream()
		ask := func() (reply, error) { return f.run(t.Context(), f.asks(c.dialect, more(c.dialect, true)+c.more)) }
		for died := range 2 {
			got, err := ask()
			var broken *BrokenStreamError
			if err != nil || !errors.As(got.err, &broken) || got.text == "" {
				t.Fatalf("%s: %v, %v after %q", name, err, got.err, got.text)
			}
			f.Wait()
			if down := f.down(); down != died+1 {
				t.Errorf("%s: %d servers are down after %d deaths", name, down, died+1)
			}
		}
		if whys := reasonsIn(log.String()); !slices.EqualFunc(whys, c.why, strings.HasSuffix) {
			t.Errorf("%s: not continued because of %q, want %q", name, whys, c.why)
		}
		if _, err := ask(); !errors.Is(err, retry.ErrQuarantined) {
			t.Errorf("%s: %v", name, err)
		}
		if list := f.Suspects.List(time.Now()); len(list) != 1 || len(list[0].Servers) != 2 || list[0].Causes[0] != "it was decoding" {
			t.Errorf("%s: suspected are %+v", name, list)
		}
		for _, e := range f.decode {
			if f.server(e).Health().Up {
				e.ClearFaults()
			}
		}
		f.served(f.asks(api.Chat, more(api.Chat, true)+`,"user":"another"`))
		f.nothingIsLeft()
	}
}

func twice(s string) []string { return []string{s, s} }

// reasonsIn are those that a log has for streams that are not continued.
func reasonsIn(log string) (whys []string) {
	for line := range strings.Lines(log) {
		if _, why, is := strings.Cut(line, ` reason="`); is && strings.Contains(line, "it cannot be continued") {
			whys = append(whys, strings.TrimSuffix(why, "\"\n"))
		}
	}
	return whys
}

// A request that goes to servers which have died before they read it has killed none, however
// many: they are taken out, and another one serves it.
func TestRun_ServersThatDiedBeforeTheyReadARequestDidNotDieOfIt(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 3})
	died := 0
	f.diesOf(fmt.Errorf("%w: %w", enginehttp.ErrUnread, syscall.ECONNRESET), func(*http.Request) bool { died++; return died <= 2 })
	f.served(f.asks(api.Chat, more(api.Chat, false)))
	if list := f.Suspects.List(time.Now()); len(list) != 0 {
		t.Errorf("suspected are %+v", list)
	}
	if down := f.down(); down != 2 {
		t.Errorf("%d servers are known to be down", down)
	}
	f.nothingIsLeft()
	f.wantMetrics(map[string]float64{"tandem_retries_total": 2, "tandem_quarantined_requests": 0})
}

// A connection that breaks while its server lives is no death of the server's.
func TestRun_ALostConnectionToALivingServerIsNoDeath(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 3})
	through, broken := f.Transport, 0
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if broken++; broken <= 2 {
			return nil, io.ErrUnexpectedEOF
		}
		return through.RoundTrip(r)
	})
	f.served(f.asks(api.Chat, more(api.Chat, false)))
	if list := f.Suspects.List(time.Now()); len(list) != 0 {
		t.Errorf("suspected are %+v", list)
	}
	for _, s := range f.Fleet.Servers() {
		if !s.Health().Up {
			t.Errorf("%s is down", s.ID())
		}
	}
	f.nothingIsLeft()
}

// An engine that says that it is dead is: it is taken out at once, without asking it.
func TestRun_AnEngineThatSaysThatItIsDeadIsOut(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 2})
	through, dead, suspected := f.Transport, "", 0
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if dead != "" {
			suspected = max(suspected, len(f.Suspects.List(time.Now())))
			return through.RoundTrip(r)
		}
		dead = r.URL.Host
		return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"error":{"message":"EngineCore encountered an issue."}}`))}, nil
	})
	f.served(f.asks(api.Chat, more(api.Chat, false)))
	for _, s := range f.Fleet.Servers() {
		if up := s.Health().Up; up == (s.ID() == dead) {
			t.Errorf("%s is up: %v", s.ID(), up)
		}
	}
	if list := f.Suspects.List(time.Now()); suspected != 1 || len(list) != 0 {
		t.Errorf("%d were suspected, and when it was answered %+v", suspected, list)
	}
	f.nothingIsLeft()
}

// What refuses a request may quote it: the words of a dead engine in it are the client's, and take no server out.
func TestRun_ARefusalThatQuotesTheRequestIsNoDeath(t *testing.T) {
	for status, body := range map[int]string{
		http.StatusBadRequest: `{"error":{"message":"Input should be a valid integer, input: 'EngineDeadError'","code":400}}`,
		http.StatusOK:         `{"error":{"message":"Input should be a valid integer, input: 'EngineDeadError'","code":400}}`,
	} {
		f := newEngineFleet(t, fleetShape{decode: 2})
		f.answersFirst(status, http.Header{}, body)
		_, err := f.run(t.Context(), f.asks(api.Chat, more(api.Chat, false)))
		var refused *LegError
		if !errors.As(err, &refused) || refused.Kind != Refused {
			t.Errorf("status %d: %v", status, err)
		}
		if down, list := f.down(), f.Suspects.List(time.Now()); down > 0 || len(list) > 0 {
			t.Errorf("status %d: %d servers are down, suspected are %+v", status, down, list)
		}
		f.nothingIsLeft()
	}
}

// makeUnresponsive makes a server unresponsive, once its first probe has ended: what that hears
// is a sign of life.
func (f *engineFleet) makeUnresponsive(s *pools.Server) {
	f.t.Helper()
	f.eventually("its load was heard of", func() bool { return s.Load().KVTokens.Known })
	if s.ProbeLate(time.Now()); s.State() != pools.Unresponsive {
		f.t.Fatalf("it is %v", s.State())
	}
}

// While the only servers that could take a request are unresponsive it waits for them, within a
// bound and its deadline, and is served when one shows that it lives.
func TestRun_WaitsForUnresponsiveServers(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, orchestrator: func(o *Orchestrator) { o.Binder.Config.UnresponsiveWait = time.Minute }})
	s := f.server(f.decode[0])
	stall := func() { f.makeUnresponsive(s) }
	ask := func(ctx context.Context, deadline time.Time) <-chan error {
		ended := make(chan error, 1)
		req := f.asks(api.Chat, more(api.Chat, false))
		req.Deadline = deadline
		go func() {
			_, err := f.run(ctx, req)
			ended <- err
		}()
		return ended
	}
	waits := func() {
		t.Helper()
		f.eventually("it waits", func() bool { waiting, _ := f.Queue.Len(); return waiting == 1 })
	}

	stall()
	ended := ask(t.Context(), time.Time{})
	waits()
	s.RecordAlive(time.Now())
	if err := <-ended; err != nil {
		t.Errorf("it lives: %v", err)
	}

	stall()
	ctx, leave := context.WithCancel(t.Context())
	ended = ask(ctx, time.Time{})
	waits()
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the client left: %v", err)
	}

	ended = ask(t.Context(), time.Time{})
	waits()
	s.MarkDown("for the test")
	var none *NoServerError
	if err := <-ended; !errors.As(err, &none) || none.Role != pools.Decode {
		t.Errorf("it is dead: %v", err)
	}
	f.wantMetrics(map[string]float64{"tandem_unresponsive_waits_total{role=decode}": 3, "tandem_unresponsive_waits_total": 3})
	f.nothingIsLeft()
}

// The longest wait for unresponsive servers, and the request's deadline, end it.
func TestRun_WaitsForUnresponsiveServersNoLongerThanAllowed(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, orchestrator: func(o *Orchestrator) { o.Binder.Config.UnresponsiveWait = 60 * time.Millisecond }})
	f.makeUnresponsive(f.server(f.decode[0]))
	start := time.Now()
	var none *NoServerError
	if _, err := f.run(t.Context(), f.asks(api.Chat, more(api.Chat, false))); !errors.As(err, &none) || time.Since(start) < 60*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	f.Binder.Config.UnresponsiveWait = time.Minute
	req := f.asks(api.Chat, more(api.Chat, false))
	req.Deadline = time.Now().Add(60 * time.Millisecond)
	if _, err := f.run(t.Context(), req); !errors.Is(err, queue.ErrDeadline) {
		t.Errorf("%v", err)
	}
	f.nothingIsLeft()
}

// A server that lost a connection is out where it takes no new one; what its engine says of itself is
// believed without a look. Why it is out is remembered.
func TestMarkDownIfDead_ByALookOrByItsWord(t *testing.T) {
	for name, c := range map[string]struct {
		refuses, certain, died bool
		reason                 string
	}{
		"it takes connections": {false, false, false, ""},
		"it refuses them":      {true, false, true, "connection lost and refused"},
		"it says so":           {false, true, true, "its engine says that it is dead"},
	} {
		f := newEngineFleet(t, fleetShape{decode: 2})
		s, other := f.server(f.decode[0]), f.server(f.decode[1])
		if c.refuses {
			f.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
		}
		if died := f.markDownIfDead(t.Context(), s.ID(), c.certain); died != c.died || s.Health().Up == c.died || !other.Health().Up {
			t.Errorf("%s: died %v, up %v, the other one %v", name, died, s.Health().Up, other.Health().Up)
		}
		if c.died && s.Health().Reason != c.reason {
			t.Errorf("%s: it is out, since %q", name, s.Health().Reason)
		}
	}
}

// A server that is found dead died of no stream whose leg behind prefill's token it never read, and of none that was cut
// because it was known to be down.
func TestMarkDownIfStreamKilled_ByAStreamThatWasReadAlone(t *testing.T) {
	for name, c := range map[string]struct {
		broken       error
		killed, down bool
	}{
		"it was lost":               {io.ErrUnexpectedEOF, true, true},
		"behind prefill's token":    {&LegError{Leg: DecodeLeg, Kind: Broken, Err: io.ErrUnexpectedEOF}, true, true},
		"not sent behind it":        {&LegError{Leg: DecodeLeg, Kind: Unsent, Err: syscall.ECONNREFUSED}, false, true},
		"not read behind it":        {&LegError{Leg: DecodeLeg, Kind: Broken, Err: enginehttp.ErrUnread}, false, true},
		"the server is known down":  {errServerDown, false, false},
		"the engine sent its error": {errErrorEvent, false, false},
	} {
		f := newEngineFleet(t, fleetShape{decode: 1})
		f.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
		if killed := f.markDownIfStreamKilled(t.Context(), f.server(f.decode[0]).ID(), &BrokenStreamError{Err: c.broken}); killed != c.killed || f.down() == 1 != c.down {
			t.Errorf("%s: killed %v, %d are down", name, killed, f.down())
		}
	}
}
