package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// readPast reads up to the end of a piece.
func readPast(t *testing.T, from io.Reader, end []byte) []byte {
	t.Helper()
	var text []byte
	for piece := make([]byte, 4096); !bytes.HasSuffix(text, end); {
		n, err := from.Read(piece)
		if text = append(text, piece[:n]...); err != nil {
			t.Fatalf("%q, %v", text[max(0, len(text)-1000):], err)
		}
	}
	return text
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

// open takes a request on a new connection and begins its stream.
func (e *tcpEngine) open() {
	e.t.Helper()
	conn, err := e.listener.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	e.conns = append(e.conns, conn)
	e.begin(conn)
}

// begin takes a request and begins its stream.
func (e *tcpEngine) begin(conn net.Conn) {
	e.t.Helper()
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
