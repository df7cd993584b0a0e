package proxybench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// engineAt serves one mock engine on a port of its own.
func engineAt(t *testing.T, role string) (e *Engines, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	e = newEngines()
	go func() { _ = e.accept(listener, Server{Engine: "vllm", Role: role}, nil) }()
	return e, listener.Addr().String()
}

// clientOf is a connection that ends with the test.
func clientOf(t *testing.T, address string) *client {
	t.Helper()
	c := &client{address: address}
	t.Cleanup(c.close)
	return c
}

// with is a prompt with further members in its body.
func with(p prompt, members string) *prompt {
	rest := strings.TrimSuffix(string(p.after), "}")
	return &prompt{p.before, []byte(rest + "," + members + "}")}
}

// A whole answer and a stream pass their own checks, one after the other on one connection, whatever the
// size of the prompt.
func TestEngine_AnswersWhatWasAskedFor(t *testing.T) {
	e, address := engineAt(t, roleBoth)
	c := clientOf(t, address)
	for _, size := range []int{100, smallPrompt, longPrompt} {
		if err := c.ask(&prompts(size, answer, false)[3], nextMark(), answer); err != nil {
			t.Fatalf("a whole answer to %d bytes: %v", size, err)
		}
		s, err := c.open(&prompts(size, 200, true)[3], nextMark())
		if err != nil {
			t.Fatal(err)
		}
		for more := true; more && err == nil; {
			more, err = s.next()
		}
		if err != nil || s.events != 200 {
			t.Fatalf("a stream to %d bytes: %d events, %v", size, s.events, err)
		}
	}
	if legs := e.ledger.counts(); legs.Alone != 6 || len(legs.Faults) > 0 {
		t.Errorf("the engine saw %+v", legs)
	}
}

// An answer to another request, or one with another number of tokens, is noticed.
func TestClient_NoticesWhatIsNotItsOwn(t *testing.T) {
	_, address := engineAt(t, roleBoth)
	c := clientOf(t, address)
	p := &prompts(smallPrompt, answer, false)[0]
	if err := c.ask(p, nextMark(), answer+1); !errors.Is(err, errWrong) {
		t.Errorf("fewer tokens than were asked for: %v", err)
	}
	own, other := nextMark(), nextMark()
	foreign := appendWhole(nil, &leg{mark: other, answer: 4}, "")
	if err := checkWhole(200, foreign, own, 4); !errors.Is(err, errWrong) {
		t.Errorf("an answer to another request: %v", err)
	}
	s := &stream{of: own}
	if _, err := s.read(appendEvent(nil, &leg{mark: other, answer: 4}, 1)); !errors.Is(err, errWrong) {
		t.Errorf("an event of another request: %v", err)
	}
	if content, err := s.read(appendEvent(nil, &leg{mark: own, answer: 4}, 1)); !content || err != nil {
		t.Errorf("an event of its own: %v %v", content, err)
	}
}

// A hand-off is good for one decode of the same request with all of its blocks.
func TestLedger_HandOffsAreReadOnceByTheirOwn(t *testing.T) {
	a, b := markOf(1), markOf(2)
	for name, c := range map[string]struct {
		read  func(l *ledger, name string)
		pairs int
		fault string
	}{
		"its own":         {func(l *ledger, name string) { l.read(name, a, 7, 0) }, 1, ""},
		"behind a token":  {func(l *ledger, name string) { l.read(name, a, 7, 7*blockTokens) }, 1, ""},
		"another prompt":  {func(l *ledger, name string) { l.read(name, a, 7, 7*blockTokens-1) }, 0, "decode goes on behind another prompt"},
		"twice":           {func(l *ledger, name string) { l.read(name, a, 7, 0); l.read(name, a, 7, 0) }, 1, "hand-off unknown or read before"},
		"another's":       {func(l *ledger, name string) { l.read(name, b, 7, 0) }, 0, "hand-off of another request"},
		"too few blocks":  {func(l *ledger, name string) { l.read(name, a, 6, 0) }, 0, "hand-off with other blocks"},
		"of another name": {func(l *ledger, _ string) { l.read("x", a, 7, 0) }, 0, "hand-off unknown or read before"},
	} {
		l := newLedger()
		c.read(l, l.issue(a, 7*blockTokens-1))
		legs := l.counts()
		if legs.Pairs != c.pairs || (c.fault == "") != (len(legs.Faults) == 0) || c.fault != "" && legs.Faults[c.fault] != 1 {
			t.Errorf("%s: %+v", name, legs)
		}
	}
}

// The legs of a pair meet in a room, and two of one role or of two requests do not.
func TestLedger_LegsMeetInTheirRoom(t *testing.T) {
	for name, c := range map[string]struct {
		role  string
		of    mark
		pairs int
	}{
		"prefill and decode": {roleDecode, markOf(1), 1},
		"two prefills":       {rolePrefill, markOf(1), 0},
		"two requests":       {roleDecode, markOf(2), 0},
	} {
		l := newLedger()
		met := make(chan bool)
		prefill, decode := legConn(t), legConn(t)
		go func() {
			first, _ := l.meet("5", rolePrefill, markOf(1), prefill)
			met <- first
		}()
		for second := false; !second; {
			l.mu.Lock()
			second = len(l.rooms) == 1
			l.mu.Unlock()
		}
		own, _ := l.meet("5", c.role, c.of, decode)
		if first := <-met; !first || own != (c.pairs == 1) {
			t.Errorf("%s: the first leg goes on %v, the second %v", name, first, own)
		}
		if legs := l.counts(); legs.Pairs != c.pairs || len(legs.Faults) != 1-c.pairs {
			t.Errorf("%s: %+v", name, legs)
		}
	}
}

// legConn is the connection of a leg, on which nothing more is sent.
func legConn(t *testing.T) *engineConn {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return &engineConn{conn: ours, in: bufio.NewReader(ours)}
}

// The other leg of one that waits for it in vain is missed, save where the measure has ended meanwhile: the
// load was cut off between the two, and what is counted now is of another one.
func TestLedger_ALegOfTheMeasureBeforeIsNotMissed(t *testing.T) {
	for name, c := range map[string]struct {
		ends   bool
		missed int
	}{"in its measure": {false, 1}, "in the next one": {true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			l, leg := newLedger(), legConn(t)
			met := make(chan error, 1)
			go func() {
				both, err := l.meet("5", rolePrefill, markOf(1), leg)
				if both {
					err = errors.New("it met one that did not come")
				}
				met <- err
			}()
			synctest.Wait()
			if c.ends {
				l.reset(time.Now())
			}
			if err := <-met; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if legs := l.counts(); legs.Faults["the other leg did not come"] != c.missed || len(l.rooms) > 0 {
				t.Errorf("%s: %+v, %d rooms", name, legs, len(l.rooms))
			}
		})
	}
}

// The other leg of one that the proxy gives up is not missed: its client has left between the two.
func TestEngine_ALegThatIsGivenUpMissesNone(t *testing.T) {
	e, address := engineAt(t, roleDecode)
	c, m := clientOf(t, address), nextMark()
	p := prompts(smallPrompt, answer, false)[0]
	if err := c.send(with(p, `"bootstrap_room":5`), m); err != nil {
		t.Fatal(err)
	}
	rooms := func() int {
		e.ledger.mu.Lock()
		defer e.ledger.mu.Unlock()
		return len(e.ledger.rooms)
	}
	for rooms() == 0 {
		runtime.Gosched()
	}
	c.close()
	for rooms() > 0 {
		runtime.Gosched()
	}
	_, left := e.ledger.departures()[string(m[:])]
	if legs := e.ledger.counts(); !left || len(legs.Faults) > 0 {
		t.Errorf("it left: %v; the engine saw %+v", left, legs)
	}
}

// NIXL's two legs, as a gateway sends them: what prefill returns is what decode has to bring.
func TestEngine_HandsOverByNIXL(t *testing.T) {
	e, address := engineAt(t, rolePrefill)
	c := clientOf(t, address)
	m := nextMark()
	p := prompts(smallPrompt, 1, false)[0]
	if err := c.ask(with(p, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}`), m, 1); err != nil {
		t.Fatal(err)
	}
	_, params, found := strings.Cut(string(c.body), `"kv_transfer_params":`)
	if !found || !strings.Contains(params, `"remote_block_ids":[[1000,`) {
		t.Fatalf("prefill answers %.200s", params)
	}
	q := prompts(smallPrompt, answer, false)[0]
	if err := c.ask(with(q, `"kv_transfer_params":`+strings.TrimSuffix(params, "}")), m, answer); err != nil {
		t.Fatal(err)
	}
	if legs := e.ledger.counts(); legs.Pairs != 1 || len(legs.Faults) > 0 {
		t.Errorf("the engine saw %+v", legs)
	}
}

// When the reader of a stream leaves, the engine notices at once and remembers when.
func TestEngine_NoticesThatItsReaderLeft(t *testing.T) {
	e, address := engineAt(t, roleBoth)
	texts := prompts(smallPrompt, 1000, true)
	texts.pace(time.Hour)
	c, m := clientOf(t, address), nextMark()
	s, err := c.open(&texts[0], m)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := s.next(); !more || err != nil {
		t.Fatalf("the first event: %v %v", more, err)
	}
	left := time.Now()
	c.close()
	for deadline := left.Add(20 * time.Second); len(e.ledger.departures()) == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	seen, noticed := e.ledger.departures()[string(m[:])]
	if at := time.Unix(0, seen); !noticed || at.Before(left) {
		t.Errorf("it left at %v, the engine noticed %v at %v", left, noticed, at)
	}
}

// The engines remember when the longest prompts were there, of both legs of a request the first.
func TestEngine_RemembersWhenALongPromptCame(t *testing.T) {
	e, address := engineAt(t, roleBoth)
	c, long, short := clientOf(t, address), nextMark(), nextMark()
	if err := c.ask(&prompts(longPrompt, 1, false)[0], short, 1); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	sent, err := c.askAt(&prompts(longestPrompt, 1, false)[0], long, 1)
	answered := time.Now()
	if err == nil {
		err = c.ask(&prompts(longestPrompt, 1, false)[0], long, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	seen := e.ledger.arrivals()
	nanos, arrived := seen[string(long[:])]
	if at := time.Unix(0, nanos); len(seen) != 1 || !arrived || at.Before(before) || at.After(answered) || sent.Before(before) || sent.After(answered) {
		t.Errorf("asked at %v, sent at %v, read at %v, answered at %v; %d are remembered", before, sent, at, answered, len(seen))
	}
}

// What a proxy adds to a body, and the order in which it writes it, do not change what the engine reads.
func TestLeg_IsReadInAnyOrder(t *testing.T) {
	m := markOf(9)
	text := passage(1, 1000)
	for name, body := range map[string]string{
		"as it was sent": fmt.Sprintf(`{"model":"bench","messages":[{"role":"system","content":"%s"},{"role":"user","content":"of %s"}],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"temperature":0.02}`, text, m[:]),
		"another order":  fmt.Sprintf(`{"temperature":0.019999999552965164,"stream_options":{"include_usage":true},"stream":true,"max_tokens":5,"messages":[{"content":"%s","role":"system"},{"content":"of %s","role":"user"}],"model":"bench"}`, text, m[:]),
	} {
		l, rest := readLeg([]byte(body), nil)
		if l.mark != m || l.size != len(text) || l.answer != 5 || !l.stream || !l.usage || l.gap != 20_000 || len(rest) > 300 {
			t.Errorf("%s: %+v, %d bytes are left", name, l, len(rest))
		}
	}
}

// Nor does it matter where the ids of the prompt stand, and whether its text does.
func TestLeg_IsReadWithTheIDsOfItsPrompt(t *testing.T) {
	const text, ids = `"messages":[{"content":"0123456789abcdef"}]`, `"kv_transfer_params":{"do_remote_prefill":true,"prompt_token_ids":[7,8,9]}`
	for body, want := range map[string]leg{
		"{" + text + "}":             {size: 16},
		"{" + ids + "}":              {reads: true, behind: 3},
		"{" + text + "," + ids + "}": {reads: true, behind: 3, size: 16},
		"{" + ids + "," + text + "}": {reads: true, behind: 3, size: 16},
		`{"prompt_token_ids":[]}`:    {},
	} {
		if got, rest := readLeg([]byte(body), nil); !reflect.DeepEqual(got, want) || strings.Contains(string(rest), "7") {
			t.Errorf("%s: %+v, want %+v; %s is left", body, got, want, rest)
		}
	}
}

// A load that is over ends its clients, wherever they wait.
func TestEach_EndsWithItsContext(t *testing.T) {
	_, address := engineAt(t, roleBoth)
	ctx, end := context.WithCancel(t.Context())
	var counted tally
	wait := streams(ctx, address, 4, smallPrompt, 100, time.Hour, &counted)
	for counted.events.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	end()
	wait()
	if len(counted.errors) > 0 {
		t.Errorf("what the end of the load cut off counts as wrong: %v", counted.errors)
	}
}

func TestChunks_AreReadAsTheyWereWritten(t *testing.T) {
	var written, want []byte
	for _, size := range []int{1, 4095, 0xffff, 0x10000, 400_000} {
		data := bytes.Repeat([]byte{byte(size), 'x'}, size/2+1)[:size]
		written = appendChunk(written, func(b []byte) []byte { return append(b, data...) })
		want = append(want, data...)
	}
	got, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(append(written, "0\r\n\r\n"...))))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}
