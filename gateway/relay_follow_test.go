//go:build linux

package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// followedStreams is how many streams a loop follows now.
func followedStreams() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("gateway.(*relay).follow("))
}

// runOnTCP is a gateway before an engine whose connections are real ones.
func runOnTCP(t *testing.T) (*running, *tcpEngine) {
	engine := listenAsEngine(t)
	transport := enginehttp.NewTransport(10 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	return run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		r.URL.Host = engine.listener.Addr().String()
		return transport.RoundTrip(r)
	}, alone(t)), engine
}

// openStream opens a stream, of which the client has the first event.
func openStream(t *testing.T, g *running, engine *tcpEngine) (client, conn net.Conn) {
	t.Helper()
	client = g.dial()
	askOn(t, client)
	engine.open()
	readPast(t, client, []byte("\n\n\r\n"))
	return client, engine.conns[len(engine.conns)-1]
}

// openFollowed opens a stream and has the engine say more of it until a loop follows it. It returns the events so far.
func openFollowed(t *testing.T, g *running, engine *tcpEngine) (client, conn net.Conn, events int) {
	t.Helper()
	client, conn = openStream(t, g, engine)
	before := followedStreams()
	for events = 1; events <= followFrom; events++ {
		engine.says(events, conn)
		readPast(t, client, []byte("\n\n\r\n"))
	}
	eventually(t, "a loop follows the stream", func() bool { return followedStreams() > before })
	return client, conn, events
}

// eitherWay does the same with a stream that its own goroutine waits for, and with one that a loop follows.
func eitherWay(t *testing.T, do func(client, conn net.Conn)) {
	t.Helper()
	g, engine := runOnTCP(t)
	do(openStream(t, g, engine))
	client, conn, _ := openFollowed(t, g, engine)
	do(client, conn)
}

// endOfStream is how an engine ends its streams.
const endOfStream = "data: [DONE]\n\n"

func chunkOf(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

func chunksOf(wire []byte) io.Reader { return httputil.NewChunkedReader(bytes.NewReader(wire)) }

// A stream that a loop follows is the one that its goroutine relays, to its end; the connection serves the next one.
func TestFollow_AStreamIsTheSame(t *testing.T) {
	g, engine := runOnTCP(t)
	client, conn, from := openFollowed(t, g, engine)
	for round := range 3 {
		for i := range 100 {
			engine.says(from+i, conn)
			text := readPast(t, client, []byte("\n\n\r\n"))
			if !bytes.Contains(text, fmt.Appendf(nil, `"text":" a%d"`, from+i)) || bytes.Contains(text, []byte("token_ids")) {
				t.Fatalf("event %d: %q", from+i, text)
			}
		}
		if followedStreams() == 0 {
			t.Error("it is followed no longer")
		}
		if _, err := io.WriteString(conn, chunkOf(endOfStream)+"0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if text := readPast(t, client, []byte("\r\n0\r\n\r\n")); !bytes.HasSuffix(text, []byte("data: [DONE]\n\n\r\n0\r\n\r\n")) {
			t.Fatalf("round %d ends with %q", round, text)
		}
		askOn(t, client)
		engine.begin(conn)
		readPast(t, client, []byte("\n\n\r\n"))
		for range followFrom {
			engine.says(0, conn)
			readPast(t, client, []byte("\n\n\r\n"))
		}
		from = round
	}
	if n := len(engine.conns); n != 1 {
		t.Errorf("%d connections to the engine", n)
	}
}

// Events in parts, several at once and long ones come as they are.
func TestFollow_EventsHoweverTheyAreCut(t *testing.T) {
	g, engine := runOnTCP(t)
	client, conn, _ := openFollowed(t, g, engine)
	var sent strings.Builder
	for i := range 300 {
		text := fmt.Sprintf(`data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"%d %s","logprobs":null,"finish_reason":null}]}`+"\n\n", i, strings.Repeat("x", i*i%5000))
		sent.WriteString(text)
		wire := []byte(chunkOf(text))
		if i%7 == 0 {
			wire = append(wire, chunkOf(": nothing\n\n")...)
		}
		cut := len(wire) * (i % 5) / 4
		for _, part := range [][]byte{wire[:cut], wire[cut:]} {
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
	}
	_, _ = io.WriteString(conn, chunkOf(endOfStream)+"0\r\n\r\n")
	got := readPast(t, client, []byte("\r\n0\r\n\r\n"))
	body, err := io.ReadAll(chunksOf(got))
	body = bytes.ReplaceAll(body, []byte(": nothing\n\n"), nil)
	if err != nil || string(body) != sent.String()+endOfStream {
		t.Errorf("%d bytes of %d, %v", len(body), sent.Len(), err)
	}
}

// A client that reads nothing for a time gets all, and holds up nobody else.
func TestFollow_ASlowClientHoldsUpNobody(t *testing.T) {
	g, engine := runOnTCP(t)
	slow, toSlow, _ := openFollowed(t, g, engine)
	quick, toQuick, _ := openFollowed(t, g, engine)
	// Each event is 1 KB with its chunk, half of what the loop reads at a time: it never has a part of one.
	event := func(i int) string {
		const begin, end = `data: {"choices":[{"index":0,"text":"`, `","finish_reason":null}]}` + "\n\n"
		return chunkOf(fmt.Sprintf("%s%-*d%s", begin, 1<<10-len("3f7\r\n\r\n")-len(begin+end), i, end))
	}
	const events = 20_000 // more than the sockets between hold
	wrote := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < events && err == nil; i++ {
			_, err = io.WriteString(toSlow, event(i))
		}
		_, _ = io.WriteString(toSlow, chunkOf(endOfStream)+"0\r\n\r\n")
		wrote <- err
	}()
	for i := range 200 {
		engine.says(i, toQuick)
		readPast(t, quick, []byte("\n\n\r\n"))
	}
	select {
	case err := <-wrote:
		t.Fatalf("the slow client's stream fits into the sockets: %v", err)
	default:
	}
	body, err := io.ReadAll(chunksOf(readPast(t, slow, []byte("\r\n0\r\n\r\n"))))
	if n := bytes.Count(body, []byte("data: {")); err != nil || n != events || <-wrote != nil || !bytes.Contains(body, fmt.Appendf(nil, "\"%d ", events-1)) {
		t.Errorf("%d events of %d, %v", n, events, err)
	}
}

// A client that leaves a stream which a loop follows ends its leg.
func TestFollow_AClientThatLeaves(t *testing.T) {
	g, engine := runOnTCP(t)
	client, conn, _ := openFollowed(t, g, engine)
	_ = client.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the engine sends on")
	}
	eventually(t, "the request is over", func() bool { return followedStreams() == 0 })
}

// An engine that dies ends the stream with an error event, and the connection is cut.
func TestFollow_AnEngineThatDies(t *testing.T) {
	g, engine := runOnTCP(t)
	client, conn, _ := openFollowed(t, g, engine)
	_ = conn.Close()
	_ = engine.listener.Close()
	text, err := io.ReadAll(client)
	if !bytes.Contains(text, []byte(`"code":"stream_broken"`)) || bytes.Contains(text, []byte("0\r\n\r\n")) || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "broken_stream", "http")) == 1
	})
}

// An engine that says that its stream is complete and does not end its answer holds up nobody.
func TestRelay_AnEngineThatDoesNotEndItsAnswer(t *testing.T) {
	eitherWay(t, func(client, conn net.Conn) {
		if _, err := io.WriteString(conn, chunkOf(endOfStream)); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		if text := readPast(t, client, []byte("\r\n0\r\n\r\n")); !bytes.Contains(text, []byte(endOfStream)) {
			t.Errorf("%q", text)
		}
	})
}

// An event that comes together with one which the client does not see is not held back by it.
func TestRelay_AnEventBesideAHiddenOne(t *testing.T) {
	const hidden = `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}` + "\n\n"
	event := strings.Replace(hidden, `"choices":[]`, `"choices":[{"index":0,"text":"seen","logprobs":null,"finish_reason":null}]`, 1)
	eitherWay(t, func(client, conn net.Conn) {
		if _, err := io.WriteString(conn, chunkOf(event+hidden)); err != nil {
			t.Fatal(err)
		}
		_ = client.SetReadDeadline(time.Now().Add(5 * time.Second))
		if text := readPast(t, client, []byte("\n\n\r\n")); !bytes.Contains(text, []byte("seen")) || bytes.Contains(text, []byte(`"choices":[]`)) {
			t.Errorf("%q", text)
		}
	})
}
