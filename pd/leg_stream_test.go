package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

const (
	roleEvent = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	textEvent = `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
)

// legOf is a leg's stream over a body, whose first event is to come within a minute, and each
// further one within a second.
func legOf(t *testing.T, f *testFleet, body io.ReadCloser) *legStream {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	context.AfterFunc(ctx, func() { _ = body.Close() })
	s := &legStream{
		dialect: api.Chat, events: api.NewEventReader(body), body: body, ctx: ctx, cancel: cancel, idleLimit: time.Second,
		side: func() api.PromptUsage { return api.PromptUsage{} }, server: f.Fleet.Servers()[0], mostTokens: 1 << 20,
		choices: api.NewEndedChoices(1), onGap: func(time.Duration) {}, onEnd: func(StreamResult) {},
	}
	s.idle = time.AfterFunc(time.Minute, s.idleOver)
	return s
}

// timedBody is a body of an engine that sends event by event.
type timedBody struct {
	*io.PipeReader
	closed context.Context
	close  context.CancelFunc
}

// Close ends the engine's sending too.
func (b timedBody) Close() error {
	b.close()
	return b.PipeReader.Close()
}

// sent is a body in which each event comes so long after the one before; after the last one it
// stays open.
func sent(events ...any) io.ReadCloser {
	r, w := io.Pipe()
	body := timedBody{PipeReader: r}
	body.closed, body.close = context.WithCancel(context.Background())
	go func() {
		for _, e := range events {
			switch e := e.(type) {
			case time.Duration:
				select {
				case <-time.After(e):
				case <-body.closed.Done():
					return
				}
			case string:
				if _, err := io.WriteString(w, e); err != nil {
					return
				}
			}
		}
	}()
	return body
}

// What closes an answer comes right behind its last token: that is no gap between tokens.
func TestLegStream_WhatClosesAnAnswerMakesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 20 * time.Millisecond
		delta := `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}` + "\n\n"
		s := legOf(t, newTestFleet(t, 1, testPrompt(100)), sent(
			`data: {"type":"message_start","message":{}}`+"\n\n", delta, step, delta, step, delta,
			`data: {"type":"content_block_stop","index":0}`+"\n\n", `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}`+"\n\n",
			`data: {"type":"message_stop"}`+"\n\n",
		))
		s.dialect = api.Messages
		var gaps []time.Duration
		s.onGap = func(gap time.Duration) { gaps = append(gaps, gap) }
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := s.Next(); err != nil {
				break
			}
		}
		s.Close()
		if !slices.Equal(gaps, []time.Duration{step, step}) {
			t.Errorf("gaps: %v", gaps)
		}
	})
}

// One time limit runs from the sending of a leg to its first content, whatever else the engine
// sends meanwhile.
func TestLegStream_TheTimeToTheFirstContentIsOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = 25 * time.Second
		f := newTestFleet(t, 1, testPrompt(160))
		start := time.Now()
		s := legOf(t, f, sent(pause, roleEvent, pause, textEvent))
		if err := s.open(func(time.Time) {}); err != nil || time.Since(start) != 2*pause {
			t.Errorf("the first content after %v: %v", time.Since(start), err)
		}
		s.Close()
		start = time.Now()
		s = legOf(t, f, sent(pause, roleEvent, pause, roleEvent, pause, textEvent))
		if err := s.open(func(time.Time) {}); !errors.Is(err, errSilent) || time.Since(start) != time.Minute {
			t.Errorf("without content for %v: %v", time.Since(start), err)
		}
		s.Close()
	})
}

// A comment by which a server keeps connections alive goes to the client at once, and is no sign of the engine's life.
func TestLegStream_CommentsArePassedOnAndGiveNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const comment, soon = ": keep-alive\n\n", 400 * time.Millisecond
		f := newTestFleet(t, 1, testPrompt(160))
		s := legOf(t, f, sent(comment, roleEvent, textEvent, soon, comment, soon, comment, soon, textEvent, textEvent))
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		if out, err := s.Next(); err != nil || string(out) != comment+roleEvent+textEvent {
			t.Errorf("%q, %v", out, err)
		}
		start := time.Now()
		for n := range 2 {
			s.Await()
			if out, err := s.Next(); err != nil || string(out) != comment || time.Since(start) != time.Duration(n+1)*soon {
				t.Errorf("%q after %v, %v", out, time.Since(start), err)
			}
		}
		s.Await()
		if out, err := s.Next(); !errors.Is(err, errSilent) || time.Since(start) != time.Second {
			t.Errorf("%q after %v: %v", out, time.Since(start), err)
		}
		s.Close()
	})
}

// A parser of tool calls holds back what an engine has said since it opened the answer: where that is with the
// first token, what prefill and transfer took ends there, and else with the first content.
func TestLegStream_WhatIsHeldBackIsNotThePromptsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for opensLate, want := range map[bool][]time.Duration{true: {time.Second}, false: {3 * time.Second}} {
			f := newTestFleet(t, 1, testPrompt(160))
			start := time.Now()
			s := legOf(t, f, sent(time.Second, roleEvent, 2*time.Second, textEvent, textEvent))
			var heard []time.Duration
			s.opensLate = opensLate
			if err := s.open(func(now time.Time) { heard = append(heard, now.Sub(start)) }); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Next(); err != nil || !slices.Equal(heard, want) {
				t.Errorf("opens with its first token: %v: heard after %v, want %v (%v)", opensLate, heard, want, err)
			}
			s.Close()
			heard, start = nil, time.Now()
			s = legOf(t, f, sent(time.Second, `data: {"type":"message_start","message":{}}`+"\n\n", 2*time.Second, `data: {"type":"content_block_delta","index":0}`+"\n\n"))
			s.dialect, s.opensLate = api.Messages, opensLate
			if err := s.open(func(now time.Time) { heard = append(heard, now.Sub(start)) }); err != nil || !slices.Equal(heard, want) {
				t.Errorf("a message, %v: heard after %v, want %v (%v)", opensLate, heard, want, err)
			}
			s.Close()
		}
	})
}

// Once it has begun each event has a limit of its own. It runs only while the gateway waits for
// the engine: a client that reads slowly does not use it up.
func TestLegStream_ASlowClientIsNoSilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = 900 * time.Millisecond
		f := newTestFleet(t, 1, testPrompt(160))
		s := legOf(t, f, sent(textEvent, textEvent, soon, textEvent, soon, textEvent, textEvent))
		defer s.Close()
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the limit up to the first content is over, and the next runs only in Next
		for i := range 5 {
			if out, err := s.Next(); err != nil || string(out) != textEvent {
				t.Fatalf("event %d: %q, %v", i, out, err)
			}
		}
		time.Sleep(time.Hour)
		if s.ctx.Err() != nil {
			t.Errorf("while the client reads nothing its leg ends: %v", context.Cause(s.ctx))
		}
		start := time.Now()
		var broken *BrokenStreamError
		if _, err := s.Next(); !errors.As(err, &broken) || !errors.Is(err, errSilent) || time.Since(start) != time.Second {
			t.Errorf("of a silent engine it is told %v after %v", err, time.Since(start))
		}
	})
}

// lateBody is a body that is read into room which is taken late.
type lateBody struct{ io.ReadCloser }

func (b lateBody) ReadLate(room interface {
	Take() []byte
	Release()
}) (int, error) {
	return b.Read(room.Take())
}

// Who waits for an event waits as long as who reads it: each has one limit, and a client that is slow before it uses none
// of it up.
func TestLegStream_AwaitHasTheLimitOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 1, testPrompt(160))
		s := legOf(t, f, lateBody{sent(roleEvent, textEvent, 900*time.Millisecond, textEvent, 900*time.Millisecond, textEvent[:20], 90*time.Millisecond, textEvent[20:], 600*time.Millisecond, textEvent[:20], 600*time.Millisecond, textEvent[20:])})
		defer s.Close()
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			s.Await()
			if out, err := s.Next(); err != nil || !strings.Contains(string(out), textEvent) {
				t.Fatalf("event %d: %q, %v", i, out, err)
			}
			if i < 2 {
				time.Sleep(2 * time.Second)
			}
		}
		began := time.Now() // the limit is that of the whole event
		s.Await()
		var broken *BrokenStreamError
		if out, err := s.Next(); !errors.As(err, &broken) || !errors.Is(err, errSilent) || time.Since(began) != time.Second {
			t.Errorf("%q, %v after %v", out, err, time.Since(began))
		}
	})
}

// followedBody is a body that can be followed.
type followedBody struct{ io.ReadCloser }

func (b followedBody) Follow(room interface {
	Take() []byte
	Release()
}, arrived func(n int, err error) (goOn bool),
) (began bool) {
	for goOn := true; goOn; {
		goOn = arrived(b.Read(room.Take()))
	}
	return true
}

// Each event of a stream that is followed has the limit of an event, though the timer is not set for it; a client that is
// slow behind it uses none of that up.
func TestLegStream_FollowHasTheLimitOfEachEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 1, testPrompt(160))
		s := legOf(t, f, followedBody{sent(roleEvent, textEvent, 900*time.Millisecond, textEvent, 900*time.Millisecond, textEvent, 900*time.Millisecond, textEvent, 600*time.Millisecond, textEvent, 300*time.Millisecond, ": still here\n\n")})
		defer s.Close()
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		came, last := 0, time.Time{}
		follow := func(upTo int) {
			if began := s.Follow(func() bool {
				for out, here := s.Here(); here; out, here = s.Here() {
					if strings.Contains(string(out), textEvent) {
						came, last = came+1, time.Now()
					}
				}
				return came < upTo
			}); !began {
				t.Fatal("it was not followed")
			}
		}
		follow(2)
		time.Sleep(2 * time.Second) // for the client
		follow(5)
		var broken *BrokenStreamError
		if out, err := s.Next(); came != 4 || !errors.As(err, &broken) || !errors.Is(err, errSilent) || time.Since(last) != time.Second {
			t.Errorf("%d events, and %q, %v after %v", came, out, err, time.Since(last))
		}
	})
}

// What comes before the first content is held back until then, up to the length of one event
// and not a byte more.
func TestLegStream_WhatComesBeforeTheContentIsBounded(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	for over, want := range map[int]error{0: nil, 1: api.ErrEventTooLong} {
		padding := api.MaxEvent/2 - len(roleEvent) - len(`"x":"",`)
		long := func(n int) string {
			return strings.Replace(roleEvent, `{"choices"`, `{"x":"`+strings.Repeat("a", n)+`","choices"`, 1)
		}
		before := long(padding) + long(padding-len(textEvent)+over)
		s := legOf(t, f, io.NopCloser(strings.NewReader(before+textEvent)))
		if err := s.open(func(time.Time) {}); !errors.Is(err, want) {
			t.Errorf("%d bytes before the content and with it: %v", len(before)+len(textEvent), err)
		}
		if want == nil && len(s.pending) != api.MaxEvent {
			t.Errorf("%d bytes are held back", len(s.pending))
		}
		s.Close()
	}
}

// What is held back is counted with long answers, until the client has it.
func TestLegStream_WhatIsHeldBackIsCounted(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	const part = 400_000 // whose buffer is not counted
	answers := enginehttp.NewAnswerBudget(6*part, func() bool { return false })
	early := strings.Repeat(strings.Replace(roleEvent, `{"choices"`, `{"x":"`+strings.Repeat("a", part)+`","choices"`, 1), 4)
	leg := func() *legStream {
		s := legOf(t, f, io.NopCloser(strings.NewReader(early+textEvent+textEvent)))
		s.room.held = answers.Hold("")
		s.events.Room = &s.room
		return s
	}
	opens := func(what string, s *legStream, want error) {
		t.Helper()
		if err := s.open(func(time.Time) {}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	first, second, third := leg(), leg(), leg()
	opens("the first", first, nil)
	opens("beside it", second, api.ErrEventsHeld)
	second.Close()
	for range 2 {
		if _, err := first.Next(); err != nil {
			t.Fatal(err)
		}
	}
	opens("once the client reads on", third, nil)
	third.Close()
	last := leg()
	opens("once that is closed", last, nil)
	last.Close()
	first.Close()
}

// After a hand-off the client sees prefill's count of the prompt, of which decode knows only what
// was transferred; where decode computed the prompt again, it sees what decode says.
func TestLegStream_UsageIsThatOfWhoComputedThePrompt(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	side := api.PromptUsage{Override: true, Prefill: api.Value(`{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":48}}`), Handed: 96}
	for decodeCached, want := range map[int]int64{96: 48, 48: 48, 47: 47, 0: 0} {
		usage := fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101,"prompt_tokens_details":{"cached_tokens":%d}}}`, decodeCached)
		s := legOf(t, f, io.NopCloser(strings.NewReader(textEvent+usage+"\n\ndata: [DONE]\n\n")))
		s.side = func() api.PromptUsage { return side }
		if err := s.open(func(time.Time) {}); err != nil {
			t.Fatal(err)
		}
		var said string
		for out, err := s.Next(); err == nil; out, err = s.Next() {
			said += string(out)
		}
		s.Close()
		_, data, _ := strings.Cut(said, `"usage":`)
		if got := gjson.Get(data, "prompt_tokens_details.cached_tokens").Int(); got != want || s.result.Recomputed != (2*decodeCached < 96) {
			t.Errorf("decode had %d of 96 tokens: the client sees %d cached, recomputed %v", decodeCached, got, s.result.Recomputed)
		}
	}
}

// Another event is ready where it is here: held back from before the first content, or read from
// the connection already. A part of one is not, nor is anything after the end.
func TestLegStream_IsReadyWhileAnEventIsHere(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(160))
	s := legOf(t, f, io.NopCloser(strings.NewReader(roleEvent+textEvent+textEvent+"data: [DONE]\n\n"+textEvent)))
	if err := s.open(func(time.Time) {}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, true, false} { // what was held back, a text, the end, nothing
		if got := s.Ready(); got != want {
			t.Errorf("after %d reads ready %v", i, got)
		}
		if _, err := s.Next(); (err == nil) != want {
			t.Errorf("read %d: %v", i, err)
		}
	}
	s.Close()
	cut := legOf(t, f, io.NopCloser(strings.NewReader(textEvent+textEvent[:9])))
	if err := cut.open(func(time.Time) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := cut.Next(); err != nil || cut.Ready() {
		t.Errorf("a part of an event is ready: %v, %v", cut.Ready(), err)
	}
	cut.Close()
}
