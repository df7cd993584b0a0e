//go:build !race

// The race detector reads sockets by package net, in deeper frames.

package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
)

// stackOfStream is the stack of an open stream, in bytes: 4 KB. The collector halves a stack of which less than a quarter
// is used, and to that end a stream waits in frames of some 1,000 bytes (relay.await); what is done with an event fits
// in what is left. The bound is in the middle between that size and the next one.
const stackOfStream = 6 << 10

// An open stream has a stack of 4 KB once the heap was collected, and keeps it when its events come.
func TestStack_OfAnOpenStream(t *testing.T) {
	const open = 256
	engine := listenAsEngine(t)
	transport := enginehttp.NewTransport(10 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	g := run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		r.URL.Host = engine.listener.Addr().String()
		return transport.RoundTrip(r)
	}, alone(t))
	for range 3 {
		runtime.GC()
	}
	before := stacksInUse()
	var clients []net.Conn
	for range open {
		conn := g.dial()
		clients = append(clients, conn)
		askOn(t, conn)
		engine.open()
		readPast(t, conn, []byte("\n\n\r\n"))
	}
	each := func() int { return (stacksInUse() - before) / open }
	opened := each()
	for range 3 { // each halves a stack once
		runtime.GC()
	}
	waiting := each()
	for i := range 2 {
		engine.says(i, engine.conns...)
		for _, conn := range clients {
			readPast(t, conn, []byte("\n\n\r\n"))
		}
	}
	if at := each(); waiting > stackOfStream || at > stackOfStream {
		t.Errorf("the stack of an open stream has %d bytes while it waits and %d behind events, want 4 KB; %d as it opened", waiting, at, opened)
	}
	t.Logf("%d bytes as it opened, %d while it waits, %d behind events", opened, waiting, each())
}

// stacksInUse is what the stacks of all goroutines take, in bytes.
func stacksInUse() int {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return int(samples[0].Value.Uint64())
}

// readPast reads up to the end of a piece.
func readPast(t *testing.T, from io.Reader, end []byte) {
	t.Helper()
	var text []byte
	for piece := make([]byte, 4096); !bytes.HasSuffix(text, end); {
		n, err := from.Read(piece)
		if text = append(text, piece[:n]...); err != nil {
			t.Fatalf("%q, %v", text, err)
		}
	}
}

// tcpEngine is an engine whose streams take no goroutine.
type tcpEngine struct {
	t        *testing.T
	listener net.Listener
	conns    []net.Conn
}

func listenAsEngine(t *testing.T) *tcpEngine {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &tcpEngine{t: t, listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		for _, c := range e.conns {
			_ = c.Close()
		}
	})
	return e
}

// open takes a request and begins its stream.
func (e *tcpEngine) open() {
	e.t.Helper()
	conn, err := e.listener.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	e.conns = append(e.conns, conn)
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		e.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		e.t.Fatal(err)
	}
	e.says(0, conn)
}

// says sends the next event of streams.
func (e *tcpEngine) says(number int, to ...net.Conn) {
	e.t.Helper()
	event := fmt.Sprintf(`data: {"id":"cmpl-1","object":"text_completion","created":1763640000,"model":"m","choices":[{"index":0,"text":" a%d","logprobs":null,"finish_reason":null,"token_ids":[48113]}]}`, number) + "\n\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
	for _, conn := range to {
		if _, err := io.WriteString(conn, chunk); err != nil {
			e.t.Fatal(err)
		}
	}
}
