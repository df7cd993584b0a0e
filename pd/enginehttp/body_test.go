package enginehttp

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// An engine gets a body as it is, short or long, of few parts or many, again on the same connection, and
// with a length that is announced.
func TestBody_ComesWholeToTheEngine(t *testing.T) {
	got := make(chan []byte, 1)
	addresses := make(chan string, 1)
	engine := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.ContentLength {
			t.Errorf("%d bytes of %d, %v", len(body), r.ContentLength, err)
		}
		got <- body
		addresses <- r.RemoteAddr
	}))
	defer engine.Close()
	transport := NewTransport(time.Second)
	defer transport.CloseIdleConnections()
	wrote := make(chan struct{}, 1)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { wrote <- struct{}{} }})
	first := ""
	for _, length := range []int{1, shortBody, shortBody + 1, 64 << 10, 1 << 20} {
		for _, parts := range []int{1, 3, 2000} {
			text := []byte(strings.Repeat("a sentence of a prompt. ", length/24+1))[:length]
			body := NewBody(slices.Chunk(text, max(1, length/parts)))
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, engine.URL, body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(length)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if !bytes.Equal(<-got, text) {
				t.Errorf("%d bytes in %d parts came as others", length, parts)
			}
			<-wrote // the answer may be here before
			if len(body.parts) > 0 {
				t.Errorf("%d bytes in %d parts are held when they are sent", length, parts)
			}
			if first == "" {
				first = <-addresses
			} else if address := <-addresses; address != first {
				t.Errorf("%d bytes in %d parts: the connection was not used again", length, parts)
			}
		}
	}
}

// Who reads a body gets it in pieces of any size.
func TestBody_IsRead(t *testing.T) {
	for _, length := range []int{10, shortBody + 1} {
		text := bytes.Repeat([]byte("ab"), length/2)
		body := NewBody(slices.Chunk(text, 3))
		var all []byte
		for piece := make([]byte, 7); ; {
			n, err := body.Read(piece)
			all = append(all, piece[:n]...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(all, text) {
			t.Errorf("%d bytes of %d", len(all), len(text))
		}
	}
}

// An answer is read whole, whatever length it announces.
func TestReadAnswer_TakesWhatComes(t *testing.T) {
	for _, length := range []int64{-1, 0, 5, 500, 2 << 20} {
		got, err := ReadAnswer(&http.Response{ContentLength: length, Body: io.NopCloser(strings.NewReader("hello"))})
		if err != nil || string(got) != "hello" {
			t.Errorf("announced as %d: %q, %v", length, got, err)
		}
	}
}

// writes is a connection that counts what it is given to write.
type writes struct {
	net.Conn
	calls *atomic.Int32
}

func (c writes) Write(p []byte) (int, error) {
	c.calls.Add(1)
	return c.Conn.Write(p)
}

// A short body goes out with its head, whatever is longer than the buffers there, and holds back nothing of
// the next request on its connection, which has none.
func TestTransport_SendsAShortBodyWithItsHead(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append(body, r.Header.Get("X-Long")...))
	}))
	defer engine.Close()
	transport := NewTransport(time.Second)
	defer transport.CloseIdleConnections()
	var calls atomic.Int32
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &engineConn{Conn: writes{conn, &calls}}, err
	}
	for _, c := range []struct {
		head, body int
		calls      int32 // net.Buffers calls Write for each part where the connection is not a TCPConn
	}{{10, 100, 2}, {5000, 100, 2}, {10, 0, 1}, {10, 100, 2}, {10, shortBody, 2}, {10, 0, 1}} {
		calls.Store(0)
		text := strings.Repeat("b", c.body)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, engine.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if c.body > 0 {
			req.Body, req.ContentLength = NewBody(slices.Values([][]byte{[]byte(text)})), int64(c.body)
		}
		req.Header.Set("X-Long", strings.Repeat("h", c.head))
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(got) != text+strings.Repeat("h", c.head) || calls.Load() != c.calls {
			t.Errorf("%+v: %d bytes came back, in %d writes", c, len(got), calls.Load())
		}
	}
}
