package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// rawServer answers each request of a fixed length with the same bytes, on any number of connections.
func rawServer(tb testing.TB, answer string) (url string) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReaderSize(conn, 64)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if _, err := io.Copy(io.Discard, req.Body); err != nil {
						return
					}
					if _, err := io.WriteString(conn, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func oracleTransport() *http.Transport {
	return &http.Transport{
		DialContext:  (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConns: 4096, MaxIdleConnsPerHost: 512, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
		WriteBufferSize: 1 << 10, ReadBufferSize: 4 << 10,
	}
}

func ownTransport() *Transport {
	return &Transport{MaxIdle: 4096, MaxIdlePerHost: 512, IdleTimeout: 4 * time.Second}
}

const jsonAnswer = "HTTP/1.1 200 OK\r\ndate: Mon, 23 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 512\r\ncontent-type: application/json\r\n\r\n"

// Of a request with a body of 4 KB and a short answer, the server's part of it included: CPU and memory
// beside net/http's.
func BenchmarkRequest(b *testing.B) {
	url := rawServer(b, jsonAnswer+strings.Repeat("x", 512))
	prompt := []byte(strings.Repeat("a", 4096))
	for name, transport := range map[string]http.RoundTripper{"own": ownTransport(), "net/http": oracleTransport()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bodyOf(slices.Chunk(prompt, 1024)))
				if err != nil {
					b.Fatal(err)
				}
				req.ContentLength = int64(len(prompt))
				resp, err := transport.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); n != 512 || err != nil {
					b.Fatal(n, err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

// What an open stream holds: heap and stacks, and goroutines, without those of the server, which has none.
func BenchmarkOpenStream(b *testing.B) {
	const streams = 1000
	for name, transport := range map[string]http.RoundTripper{"own": ownTransport(), "net/http": oracleTransport()} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				heap, stacks, goroutines := holds(b, transport, streams)
				b.ReportMetric(float64(heap)/streams, "heap-B/stream")
				b.ReportMetric(float64(stacks)/streams, "stack-B/stream")
				b.ReportMetric(float64(goroutines)/streams, "goroutines/stream")
			}
		})
	}
}

func holds(b *testing.B, transport http.RoundTripper, streams int) (heap, stacks, goroutines int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conns := make(chan net.Conn, streams)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 16<<10))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nb\r\ndata: {}\n\n\r\n")
			conns <- conn
		}
	}()
	var before, after runtime.MemStats
	goroutines = -int64(runtime.NumGoroutine())
	runtime.GC()
	runtime.ReadMemStats(&before)
	var bodies []io.Closer
	prompt := []byte(strings.Repeat("a", 4096))
	for i := range streams {
		req, _ := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+listener.Addr().String(), bodyOf(slices.Values([][]byte{prompt})))
		req.ContentLength = int64(len(prompt))
		resp, err := transport.RoundTrip(req)
		if err != nil {
			b.Fatal(i, err)
		}
		if n, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
			b.Fatal(n, err)
		}
		bodies = append(bodies, resp.Body)
	}
	goroutines += int64(runtime.NumGoroutine())
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, body := range bodies {
		_ = body.Close()
	}
	for range streams {
		_ = (<-conns).Close()
	}
	return int64(after.HeapAlloc) - int64(before.HeapAlloc), int64(after.StackInuse) - int64(before.StackInuse), goroutines
}

func ExampleTransport() {
	transport := &Transport{MaxIdlePerHost: 16, IdleTimeout: 4 * time.Second}
	req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:1/", nil)
	if err != nil {
		return
	}
	_, err = transport.RoundTrip(req)
	fmt.Println(err != nil)
	// Output: true
}
