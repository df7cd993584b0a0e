package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

const ask = `{"model":"m","prompt":"hi","stream":true}`

// askOn sends ask on a connection.
func askOn(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(ask), ask); err != nil {
		t.Fatal(err)
	}
}

// The end of a stream comes at once: whoever reads the size of its last chunk has the line behind it.
func TestRelay_TheEndIsOneWrite(t *testing.T) {
	g := run(t, usual(t), stream().roundTrip, alone(t))
	conn := g.dial()
	for range 100 {
		askOn(t, conn)
		for answer, piece := "", make([]byte, 4096); !strings.HasSuffix(answer, "\r\n0\r\n\r\n"); {
			n, err := conn.Read(piece)
			if answer += string(piece[:n]); err != nil || strings.HasSuffix(answer, "\r\n0\r\n") {
				t.Fatalf("%q, %v", answer, err)
			}
		}
	}
}

// A stream that is here as a whole, and its engine's end of it, goes out by one call.
func TestRelay_AWholeStreamIsOneWrite(t *testing.T) {
	for _, length := range []int{1, 4000} {
		text := `data: {"choices":[{"index":0,"text":"` + strings.Repeat("a", length) + `","finish_reason":null}]}` + "\n\n"
		e := stream()
		g := run(t, usual(t), func(r *http.Request) (*http.Response, error) {
			resp, err := e.roundTrip(r)
			if err == nil && r.Method == http.MethodPost {
				resp.Body = &endsAtOnce{text: text + streamed}
			}
			return resp, err
		}, alone(t))
		conn := g.dial()
		for range 50 {
			askOn(t, conn)
			piece := make([]byte, 16<<10)
			n, err := conn.Read(piece)
			if answer := string(piece[:n]); err != nil || !strings.HasPrefix(answer, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(answer, "data: [DONE]\n\n\r\n0\r\n\r\n") {
				t.Fatalf("first came %q, %v", answer, err)
			}
		}
	}
}

// A long piece goes out by one call while the stream goes on.
func TestRelay_ALongPieceIsOneWrite(t *testing.T) {
	event := `data: {"choices":[{"index":0,"text":"` + strings.Repeat("a", 4000) + `","finish_reason":null}]}` + "\n\n"
	g, says := runPiped(t)
	conn := g.dial()
	for range 50 {
		askOn(t, conn)
		engine, piece := <-says, make([]byte, 16<<10)
		for _, begin := range []string{"HTTP/1.1 200 OK\r\n", "fe0\r\n"} {
			if _, err := io.WriteString(engine, event); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(piece)
			if answer := string(piece[:n]); err != nil || !strings.HasPrefix(answer, begin) || !strings.HasSuffix(answer, "\n\n\r\n") {
				t.Fatalf("%q..., %v", answer[:min(n, 99)], err)
			}
		}
		if _, err := io.WriteString(engine, streamed); err != nil {
			t.Fatal(err)
		}
		_ = engine.Close()
		for answer := ""; !strings.HasSuffix(answer, "\r\n0\r\n\r\n"); {
			n, err := conn.Read(piece)
			if answer += string(piece[:n]); err != nil {
				t.Fatalf("%q, %v", answer, err)
			}
		}
	}
}

// endsAtOnce is a body that says with its last bytes that they are the last.
type endsAtOnce struct{ text string }

func (e *endsAtOnce) Read(p []byte) (n int, err error) {
	n = copy(p, e.text)
	if e.text = e.text[n:]; e.text == "" {
		err = io.EOF
	}
	return n, err
}

func (e *endsAtOnce) Close() error { return nil }

// A stream comes as the engine sends it, without the usage that the client did not ask for,
// and costs what the engine says.
func TestRelay_AStream(t *testing.T) {
	e := stream()
	g := run(t, usual(t, "ada output-tokens-per-minute=10"), e.roundTrip, alone(t))
	got := g.post(ask, as("ada")...)
	if got.status != 200 || got.err != nil || got.header.Get("Content-Type") != "text/event-stream; charset=utf-8" || got.header.Get("Cache-Control") != "no-cache" || got.header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("%d %v, %v", got.status, got.header, got.err)
	}
	if strings.Contains(got.body, "usage") || !strings.HasSuffix(got.body, "data: [DONE]\n\n") || strings.Count(got.body, "data: {") != 2 {
		t.Errorf("%q", got.body)
	}
	if sent := e.body(t); !gjson.Get(sent, "stream_options.include_usage").Bool() {
		t.Errorf("the engine got %s", sent)
	}
	m := g.server.metrics
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(m.requests.WithLabelValues("completions", "m", "ok", "http")) == 1
	})
	if p, o := testutil.ToFloat64(m.tenantTokens.WithLabelValues("ada", "prompt")), testutil.ToFloat64(m.tenantTokens.WithLabelValues("ada", "output")); p != 2 || o != 3 {
		t.Errorf("%v and %v tokens, want 2 and 3", p, o)
	}
	if left := g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-Output-Tokens"); left != "7" {
		t.Errorf("%s output tokens are left, want 7", left)
	}
}

// Where an engine does not say what a stream cost its events count.
func TestRelay_EventsCountWhereTheEngineSaysNothing(t *testing.T) {
	e := &engines{answer: response(200, "text/event-stream", strings.Replace(streamed, `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`+"\n\n", "", 1))}
	g := run(t, usual(t, "ada output-tokens-per-minute=10"), e.roundTrip, alone(t))
	g.post(ask, as("ada")...)
	m := g.server.metrics
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(m.requests.WithLabelValues("completions", "m", "ok", "http")) == 1
	})
	if o := testutil.ToFloat64(m.tenantTokens.WithLabelValues("ada", "output")); o != 2 {
		t.Errorf("%v output tokens, want 2", o)
	}
}

// What an engine says that an answer of no tokens cost is nothing.
func TestRelay_AnAnswerOfNoTokens(t *testing.T) {
	e := &engines{answer: response(200, "text/event-stream", strings.Replace(streamed, `"completion_tokens":3`, `"completion_tokens":0`, 1))}
	g := run(t, usual(t, "ada output-tokens-per-minute=10"), e.roundTrip, alone(t))
	g.post(ask, as("ada")...)
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "ok", "http")) == 1
	})
	if left := g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-Output-Tokens"); left != "10" {
		t.Errorf("%s output tokens are left of 10", left)
	}
}

// A stream that breaks ends with an error event and a cut connection: a clean end would pass
// for success.
func TestRelay_ABrokenStream(t *testing.T) {
	e := &engines{answer: response(200, "text/event-stream", `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}`+"\n\n")}
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.post(ask, "X-Request-Id", "mine")
	if got.err == nil || !strings.Contains(got.body, `"code":"stream_broken"`) || !strings.Contains(got.body, "Hel") {
		t.Errorf("%q, %v", got.body, got.err)
	}
	eventually(t, "it is counted as broken", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "broken_stream", "http")) == 1
	})
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// A client that has the error event still to read loses it where it hears of the end of the connection before: there is
// time between the two.
func TestRelay_ABrokenStreamLeavesTimeToReadWhy(t *testing.T) {
	e := &engines{answer: response(200, "text/event-stream", `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}`+"\n\n")}
	g := run(t, usual(t), e.roundTrip, alone(t))
	began := time.Now()
	got := g.post(ask)
	if took := time.Since(began); got.err == nil || !strings.Contains(got.body, "stream_broken") || took < timeToReadWhy {
		t.Errorf("%q, %v after %v, want a cut after %v", got.body, got.err, took, timeToReadWhy)
	}
}

// A client that leaves a stream is charged for what came, and takes no place any more.
func TestRelay_AClientThatLeavesAStream(t *testing.T) {
	g := run(t, usual(t, "ada output-tokens-per-minute=10"), endless, alone(t))
	_, hangUp := g.openStream(as("ada")...)
	hangUp()
	m := g.server.metrics
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(m.requests.WithLabelValues("completions", "m", "client_gone", "http")) == 1
	})
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
	if left := g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-Output-Tokens"); left != "9" {
		t.Errorf("%s output tokens are left, want 9", left)
	}
}

// While a stream runs its key is charged with what has come.
func TestRelay_ChargesAsItGoes(t *testing.T) {
	g := run(t, usual(t, "ada output-tokens-per-minute=10"), endless, alone(t))
	g.openStream(as("ada")...)
	if left := g.post(`{`, as("ada")...).header.Get("X-Ratelimit-Remaining-Output-Tokens"); left != "9" {
		t.Errorf("%s output tokens are left, want 9", left)
	}
}

// HTTP/1.0 knows no chunks: the answer ends with the connection, and the headers are those of
// any stream.
func TestRelay_ToHTTP10(t *testing.T) {
	e := stream()
	g := run(t, usual(t), e.roundTrip, alone(t))
	const request = "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 41\r\n\r\n" + ask
	got := g.say(request)
	head, body, found := strings.Cut(got, "\r\n\r\n")
	if !found || !strings.HasPrefix(head, "HTTP/1.0 200 OK\r\nConnection: close\r\n") || strings.Contains(head, "chunked") || strings.Contains(head, "Content-Length") ||
		!strings.Contains(head, "Content-Type: text/event-stream") || !strings.Contains(head, "X-Request-Id: req-") {
		t.Errorf("%q", head)
	}
	if !strings.HasPrefix(body, "data: {") || !strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Count(body, "data: ") != 3 {
		t.Errorf("%q", body)
	}
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "ok", "http")) == 1
	})
	e.answer = response(200, "text/event-stream", `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}`+"\n\n")
	if got := g.say(request); !strings.Contains(got, "stream_broken") {
		t.Errorf("a stream that breaks: %q", got)
	}
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// A client of HTTP/1.0 that leaves ends its stream.
func TestRelay_AClientOfHTTP10Leaves(t *testing.T) {
	g := run(t, usual(t), endless, alone(t))
	conn := g.dial()
	if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.0\r\nContent-Length: 41\r\n\r\n"+ask); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "client_gone", "http")) == 1
	})
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// A large stream arrives whole, whatever the size of the pieces that it is read in.
func TestRelay_ALargeStream(t *testing.T) {
	text := strings.Repeat("river ", 20_000)
	events := `data: {"choices":[{"index":0,"text":"` + text + `","finish_reason":null}]}` + "\n\n" + strings.Repeat(`data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n", 2000) + streamed
	e := &engines{answer: response(200, "text/event-stream", events)}
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}`)
	if got.err != nil || got.body != events {
		t.Errorf("%d bytes of %d, %v", len(got.body), len(events), got.err)
	}
}

// An error before the first event is an answer with a status, as of a whole one.
func TestRelay_AnErrorBeforeTheStream(t *testing.T) {
	g := run(t, usual(t), (&engines{answer: response(422, "application/json", `{"error":{"message":"too odd"}}`)}).roundTrip, alone(t))
	if got := g.post(ask); got.status != http.StatusUnprocessableEntity || gjson.Get(got.body, "error.message").String() != "too odd" || got.header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A stream that is closed again is accounted for once.
func TestRelay_ClosedAgain(t *testing.T) {
	g := run(t, usual(t, tenOfAll), stream().roundTrip, alone(t))
	x := g.server.beginExchange(t.Context(), proxied{}, api.Completions)
	h := proxied{"Authorization": {"Bearer sk-ada"}}
	coding, err := x.checkHeader(h)
	if err != nil {
		t.Fatal(err)
	}
	req, err := x.accept(h, []byte(ask), coding)
	if err != nil {
		t.Fatal(err)
	}
	x.observeStart(req)
	answer, err := g.pd.Run(x.ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(x, answer)
	for err == nil {
		err = r.next(io.Discard)
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "ok", "http")); n != 1 {
		t.Errorf("%v are counted", n)
	}
	if n := testutil.ToFloat64(g.server.metrics.tenantTokens.WithLabelValues("ada", "output")); n != 3 {
		t.Errorf("%v tokens are counted", n)
	}
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// What goes out is a chunk of its length, with the head before it and the last chunk behind it where they belong.
func TestRelay_Frames(t *testing.T) {
	long := strings.Repeat("a", 70000)
	for name, c := range map[string]struct {
		chunks     bool
		head, says string
		last       bool
		want       string
	}{
		"the first":             {true, "HEAD", "abc", false, "HEAD3\r\nabc\r\n"},
		"a long first":          {true, "HEAD", long, false, "HEAD11170\r\n" + long + "\r\n"},
		"one amid the stream":   {true, "", "0123456789abcdef", false, "10\r\n0123456789abcdef\r\n"},
		"the last":              {true, "", "abc", true, "3\r\nabc\r\n0\r\n\r\n"},
		"all":                   {true, "HEAD", "abc", true, "HEAD3\r\nabc\r\n0\r\n\r\n"},
		"an end":                {true, "", "", true, "0\r\n\r\n"},
		"of an empty answer":    {true, "HEAD", "", true, "HEAD0\r\n\r\n"},
		"a break before all":    {true, "HEAD", "", false, ""},
		"without chunks":        {false, "HEAD", "abc", false, "HEADabc"},
		"without chunks, later": {false, "", "abc", true, "abc"},
		"and its end":           {false, "", "", true, ""},
	} {
		r := &relay{chunks: c.chunks}
		if c.head != "" {
			memory := []byte{}
			r.memory = &memory
			r.beginPiece([]byte(c.head))
		}
		if c.says != "" {
			r.takeMemory()
			r.pending = append(r.pending, c.says...)
		}
		if got := string(r.frame(c.last)); got != c.want {
			t.Errorf("%s: %.99q, want %.99q", name, got, c.want)
		}
	}
}
