package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pools"
)

// BenchmarkCounted is a request that one server answers whole, over TCP on both sides: what make instructions
// counts, which says what a change costs to a hundredth on a machine however busy. Client and engine are in it,
// and do little.
func BenchmarkCounted(b *testing.B) {
	of := usual(b)
	of.before = bindLate
	transport := enginehttp.NewTransport(10 * time.Second)
	transport.IdleTimeout = time.Hour // of an engine that closes none
	b.Cleanup(transport.CloseIdleConnections)
	engine := answering(b, wholeAnswer)
	g := run(b, of, func(r *http.Request) (*http.Response, error) {
		r.URL.Host = engine
		return transport.RoundTrip(r)
	}, pools.Spec{URL: healthy(b), Role: pools.Both, Connector: "nixl"})
	defer g.decide()()
	request := g.chatOf4KB()
	conn := g.dial()
	b.ResetTimer()
	askOften(b, conn, request, b.N)
}

// answering is the address of an engine that answers all requests alike.
func answering(b *testing.B, answer string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	whole := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for room := make([]byte, 64<<10); ; {
					if err := readRequest(conn, room); err != nil {
						return
					}
					if _, err := conn.Write(whole); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// readRequest reads a request with a length that fits into room.
func readRequest(conn net.Conn, room []byte) error {
	const length = "Content-Length: "
	for read, end := 0, -1; read != end; {
		n, err := conn.Read(room[read:])
		if err != nil {
			return err
		}
		read += n
		head := bytes.Index(room[:read], []byte("\r\n\r\n"))
		if at := bytes.Index(room[:read], []byte(length)); end < 0 && head >= 0 && at >= 0 {
			digits, _, _ := bytes.Cut(room[at+len(length):head+2], []byte("\r"))
			body, err := strconv.Atoi(string(digits))
			if err != nil {
				return err
			}
			end = head + len("\r\n\r\n") + body
		}
	}
	return nil
}
