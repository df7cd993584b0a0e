package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// asksFor is ask as a request on a connection, with one more header.
func asksFor(header string) string {
	return fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", header, len(ask), ask)
}

// runPiped is a gateway before an engine whose streams say what is written to the pipes that come.
func runPiped(t *testing.T) (g *running, says chan *io.PipeWriter) {
	t.Helper()
	says = make(chan *io.PipeWriter, 1)
	e := stream()
	return run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		resp, err := e.roundTrip(r)
		if err == nil && r.Method == http.MethodPost {
			body, w := io.Pipe()
			resp.Body = body
			says <- w
		}
		return resp, err
	}, alone(t)), says
}

// takeStream reads one streamed answer and holds it against what the engine said.
func takeStream(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(string(body), "data: {") || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Fatalf("%q, %v", body, err)
	}
	return resp
}

// Behind a stream its connection serves on: what was sent before the stream ended and what is sent later, cut
// anywhere, whether it asks for streams or not.
func TestConnections_ServeOnBehindAStream(t *testing.T) {
	g := run(t, usual(t), stream().roundTrip, alone(t))
	conn := g.dial()
	in := bufio.NewReader(conn)
	const health = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	ahead := asksFor("") + asksFor("X-More: "+strings.Repeat("m", 3000)+"\r\n") + health + asksFor("")
	for _, cut := range []int{len(ahead), len(asksFor("")), len(asksFor("")) + 1, len(asksFor("")) + 30, len(ahead) - 20} {
		if _, err := io.WriteString(conn, ahead[:cut]); err != nil {
			t.Fatal(err)
		}
		takeStream(t, in)
		if _, err := io.WriteString(conn, ahead[cut:]); err != nil {
			t.Fatal(err)
		}
		takeStream(t, in)
		if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		takeStream(t, in)
	}
}

// What is no HTTP behind a stream is refused as behind any answer, in its turn.
func TestConnections_RefuseBehindAStream(t *testing.T) {
	g := run(t, usual(t), stream().roundTrip, alone(t))
	for _, together := range []bool{true, false} {
		conn := g.dial()
		in := bufio.NewReader(conn)
		says := asksFor("")
		if together {
			says += "no request\r\n\r\n"
		}
		if _, err := io.WriteString(conn, says); err != nil {
			t.Fatal(err)
		}
		takeStream(t, in)
		if !together {
			if _, err := io.WriteString(conn, "no request\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("together %v: %v, %v", together, resp, err)
		}
		if text, err := io.ReadAll(in); err != nil || !strings.Contains(string(text), "malformed") {
			t.Errorf("together %v: %q, %v: want an end", together, text, err)
		}
	}
}

// A client that asks for it has its connection closed behind a stream, and reads that it will be.
func TestConnections_CloseBehindAStream(t *testing.T) {
	g := run(t, usual(t), stream().roundTrip, alone(t))
	conn := g.dial()
	if _, err := io.WriteString(conn, asksFor("Connection: close\r\n")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if resp := takeStream(t, in); !resp.Close {
		t.Errorf("%v", resp.Header)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("%v, want the connection closed", err)
	}
}

// Whose stream broke is waited for, to read why, until it closes its connection.
func TestConnections_WaitForADeparture(t *testing.T) {
	for _, test := range []struct{ leavesAfter, waits time.Duration }{{time.Millisecond, time.Millisecond}, {time.Hour, timeToReadWhy}} {
		synctest.Test(t, func(t *testing.T) {
			conn, client := net.Pipe()
			defer conn.Close()
			time.AfterFunc(test.leavesAfter, func() { _ = client.Close() })
			began := time.Now()
			(&clientConn{Conn: conn}).awaitDeparture()
			if waited := time.Since(began); waited != test.waits {
				t.Errorf("waited for %v, want %v", waited, test.waits)
			}
		})
	}
}

// A connection that says nothing behind a stream is closed, without a word, when it has been idle for long.
func TestConnections_AreIdleBehindAStream(t *testing.T) {
	of := usual(t)
	of.config = func(c *Config) { c.ConnIdle, c.ReadTimeout = 50*time.Millisecond, time.Hour }
	g := run(t, of, stream().roundTrip, alone(t))
	conn := g.dial()
	if _, err := io.WriteString(conn, asksFor("")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	takeStream(t, in)
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("%v, want the connection closed", err)
	}
}

// While the gateway drains and still takes connections, each answer says that its connection ends with it: a client
// that kept it would meet the end of the gateway with a request. So does an answer that was awaited when it began.
func TestConnections_EndWithTheirAnswersWhileDraining(t *testing.T) {
	const whole = `{"model":"m","prompt":"hi"}`
	post := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
	asked, answer := make(chan struct{}), make(chan struct{})
	g := run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		e := stream()
		if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPost && !strings.Contains(string(body), `"stream":true`) {
			e = complete()
			asked <- struct{}{}
			<-answer
		}
		return e.roundTrip(r)
	}, alone(t))
	send := func(request string) *bufio.Reader {
		conn := g.dial()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(conn)
	}
	ends := func(what string, in *bufio.Reader, status int) {
		t.Helper()
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || !resp.Close || resp.StatusCode != status {
			t.Fatalf("%s: %d, %v, %v: want a connection that closes", what, resp.StatusCode, resp.Header, err)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("%s: %v, want the connection closed", what, err)
		}
	}
	awaited := send(fmt.Sprintf(post, len(whole), whole))
	<-asked
	g.server.Drain()
	close(answer)
	ends("an answer that was awaited", awaited, 200)
	ends("a stream", send(asksFor("")), 200)
	ends("what is refused", send(fmt.Sprintf(post, 2, "{}")), 400)
	ends("a path that is not there", send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"), 404)
	ends("health", send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), 503)
}

// A drain waits for a stream to its end, then closes its connection; one that is idle behind a stream it closes at
// once.
func TestConnections_AreDrained(t *testing.T) {
	g, says := runPiped(t)
	begin := func() (net.Conn, *bufio.Reader, *io.PipeWriter) {
		conn := g.dial()
		if _, err := io.WriteString(conn, asksFor("")); err != nil {
			t.Fatal(err)
		}
		engine := <-says
		if _, err := io.WriteString(engine, `data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n"); err != nil {
			t.Fatal(err)
		}
		return conn, bufio.NewReader(conn), engine
	}
	end := func(engine *io.PipeWriter) {
		if _, err := io.WriteString(engine, streamed); err != nil {
			t.Error(err)
		}
		_ = engine.Close()
	}
	_, idle, engine := begin()
	end(engine)
	takeStream(t, idle)
	_, open, engine := begin()
	if _, err := open.Peek(1); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { stopped <- g.stop(ctx) }()
	if _, err := idle.ReadByte(); err != io.EOF {
		t.Errorf("the idle one: %v, want it closed", err)
	}
	select {
	case err := <-stopped:
		t.Errorf("it did not wait for the stream: %v", err)
	default:
	}
	end(engine)
	takeStream(t, open)
	if _, err := open.ReadByte(); err != io.EOF {
		t.Errorf("behind the stream: %v, want the connection closed", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
