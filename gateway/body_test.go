package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tandem-gateway/tandem/pd/bytebudget"
)

// head is that of a completion, with these headers.
func completionHead(headers string) string {
	return "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n"
}

// chunks are a text in chunks of so many bytes.
func chunks(text string, size int) string {
	var b strings.Builder
	for len(text) > 0 {
		n := min(size, len(text))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, text[:n])
		text = text[n:]
	}
	return b.String() + "0\r\n\r\n"
}

// A prompt is as large as the limit allows and no larger, however it comes.
func TestBody_AsLargeAsTheLimit(t *testing.T) {
	const limit = 300 << 10
	of := usual(t)
	of.config = func(c *Config) { c.MaxBody = limit }
	e := complete()
	g := run(t, of, e.roundTrip, alone(t))
	for _, size := range []int{100, prefetched - 1, prefetched, prefetched + 1, freeBytes - 1, freeBytes, freeBytes + 1, 4 * freeBytes, limit - 1, limit, limit + 1, 2 * limit} {
		const head, tail = `{"model":"m","prompt":"`, `"}`
		body := head + strings.Repeat("x", size-len(head)-len(tail)) + tail
		want := "HTTP/1.1 200 OK"
		if size > limit {
			want = "HTTP/1.1 413 Request Entity Too Large"
		}
		for name, request := range map[string]string{
			"sized":     completionHead(fmt.Sprintf("Connection: close\r\nContent-Length: %d\r\n", size)) + body,
			"in chunks": completionHead("Connection: close\r\nTransfer-Encoding: chunked\r\n") + chunks(body, 50_000),
		} {
			got := g.say(request)
			if !strings.HasPrefix(got, want+"\r\n") {
				t.Errorf("%d bytes %s: %.300s", size, name, got)
			}
			if legs := e.take(); size <= limit && (len(legs) != 1 || len(legs[0].body) != size) {
				t.Errorf("%d bytes %s: not all of it came to the engine", size, name)
			}
		}
	}
	if now := g.server.bodies.Taken(); now != 0 {
		t.Errorf("%d bytes are still counted", now)
	}
}

// A client that leaves amid its body has asked for nothing.
func TestBody_ThatEndsEarly(t *testing.T) {
	e := complete()
	g := run(t, usual(t), e.roundTrip, alone(t))
	gone := func() float64 {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "unknown", "client_gone", "http"))
	}
	for i, text := range []string{
		completionHead("Content-Length: 20000\r\n") + `{"model":"m","prompt":"hi"}` + strings.Repeat(" ", 10_000),
		completionHead("Transfer-Encoding: chunked\r\n") + "1b\r\n" + `{"model":"m","prompt":"hi"}` + "\r\n",
		completionHead("Transfer-Encoding: chunked\r\n") + "ff\r\n" + `{"model":"m","prompt":"hi"}`,
	} {
		conn := g.dial()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if back, _ := io.ReadAll(conn); strings.Contains(string(back), " 200 ") {
			t.Errorf("%d: it got %s", i, back)
		}
		eventually(t, "it is counted", func() bool { return gone() == float64(i+1) })
	}
	if legs := e.take(); len(legs) != 0 {
		t.Errorf("engines got %+v", legs)
	}
}

// A client that leaves amid its request is counted as gone, under the API that it asked: also where its body is so
// short that no handler was called yet, and where it resets its connection.
func TestBody_ThatEndsBeforeAHandlerReadsIt(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for _, x := range []struct {
		name, text, api, model string
		reset                  bool
	}{
		{"a short body", completionHead("Content-Length: 200\r\n") + `{"model":"m",`, "completions", "unknown", false},
		{"a body of which nothing came", completionHead("Content-Length: 200\r\n"), "completions", "unknown", false},
		{"a query", "POST /v1/messages?beta=true HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{", "messages", "unknown", false},
		{"a reset", completionHead("Content-Length: 200\r\n") + `{"model":"m",`, "completions", "unknown", true},
		{"amid the head", "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-", "embeddings", "unknown", false},
		{"another path", "POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{", "none", "none", false},
		{"an API that is closed", "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{", "none", "none", false},
	} {
		gone := g.server.metrics.requests.WithLabelValues(x.api, x.model, "client_gone", "http")
		before := testutil.ToFloat64(gone)
		conn := g.dial().(*net.TCPConn)
		if _, err := io.WriteString(conn, x.text); err != nil {
			t.Fatal(err)
		}
		if x.reset {
			_ = conn.SetLinger(0)
			_ = conn.Close()
		} else if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		eventually(t, x.name+" is counted", func() bool { return testutil.ToFloat64(gone) == before+1 })
		_ = conn.Close()
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("none", "none", "bad_request", "http")); n != 0 {
		t.Errorf("%v were counted as bad requests", n)
	}
}

// A body that does not come in time is refused.
func TestBody_ThatDoesNotCome(t *testing.T) {
	of := usual(t)
	of.config = func(c *Config) { c.ReadTimeout = 300 * time.Millisecond }
	g := run(t, of, complete().roundTrip, alone(t))
	for _, headers := range []string{"Content-Length: 20000\r\n", "Transfer-Encoding: chunked\r\n"} {
		if got := g.say(completionHead(headers)); !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, "did not arrive in time") {
			t.Errorf("%s: %s", headers, got)
		}
	}
}

// A malformed trailer is no end of a body.
func TestBody_MalformedTrailers(t *testing.T) {
	e := complete()
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.say(completionHead("Transfer-Encoding: chunked\r\n") + "1b\r\n" + `{"model":"m","prompt":"hi"}` + "\r\n0\r\nContent-Length: 5\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "trailers") || len(e.take()) != 0 {
		t.Errorf("%s", got)
	}
	got = g.say(completionHead("Connection: close\r\nTransfer-Encoding: chunked\r\n") + "1b\r\n" + `{"model":"m","prompt":"hi"}` + "\r\n0\r\nX-Sum: 5\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("good trailers: %s", got)
	}
}

// What is left of a body that was refused unread is not taken for the next request, and the
// client that still writes it gets the answer.
func TestBody_LeftUnreadClosesTheConnection(t *testing.T) {
	g := run(t, usual(t, "ada"), complete().roundTrip, alone(t))
	const smuggled = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, x := range []struct{ name, headers, body string }{
		{"sized", "Content-Length: 100000\r\n", strings.Repeat(" ", 50_000) + strings.Repeat(smuggled, 1+50_000/len(smuggled))[:50_000]},
		{"in chunks", "Transfer-Encoding: chunked\r\n", chunks(strings.Repeat(smuggled, 3000), 1000)},
	} {
		got := g.say(completionHead(x.headers) + x.body)
		if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.HasPrefix(got, "HTTP/1.1 401 ") || !strings.Contains(got, "Connection: close") {
			t.Errorf("%s: %.500s", x.name, got)
		}
	}
	// A short one was read already: the connection is of use.
	got := g.say(completionHead("Content-Length: 8192\r\n") + strings.Repeat(" ", prefetched) + "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 401 ") || strings.Count(got, "HTTP/1.1 404 ") != 1 {
		t.Errorf("a short one: %s", got)
	}
}

// Long bodies that come at once share a budget; short ones are let in beside them.
func TestBody_Budget(t *testing.T) {
	of := usual(t)
	const long = 1 << 20
	of.config = func(c *Config) { c.MaxArriving = long - freeBytes }
	g := run(t, of, complete().roundTrip, alone(t))
	first := g.dial() // takes all
	if _, err := io.WriteString(first, completionHead(fmt.Sprintf("Content-Length: %d\r\n", long))+strings.Repeat(" ", prefetched)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first is counted", func() bool { return g.server.bodies.Taken() == long-freeBytes })
	if got := g.say(completionHead(fmt.Sprintf("Connection: close\r\nContent-Length: %d\r\n", freeBytes+1)) + strings.Repeat(" ", freeBytes+1)); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "overloaded") {
		t.Errorf("beyond the budget: %.300s", got)
	}
	if got := g.say(completionHead("Connection: close\r\nTransfer-Encoding: chunked\r\n") + chunks(strings.Repeat(" ", 2*freeBytes), 10_000)); !strings.HasPrefix(got, "HTTP/1.1 503 ") {
		t.Errorf("in chunks: %.300s", got)
	}
	if got := g.post(`{"model":"m","prompt":"hi"}`); got.status != 200 {
		t.Errorf("a short one: %d %s", got.status, got.body)
	}
	_ = first.Close()
	eventually(t, "it is given back", func() bool { return g.server.bodies.Taken() == 0 })
	if got := g.post(`{"model":"m","prompt":"` + strings.Repeat("x", 2*freeBytes) + `"}`); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

// A tenant that announces long bodies and sends none of them leaves room for those of others.
func TestBody_ATenantThatSendsNothingLeavesRoomForOthers(t *testing.T) {
	leavesRoom(t, 2, "eve", "ada")
}

// Where there is one tenant, there is nobody to leave room for.
func TestBody_TheOnlyTenantHasAllRoom(t *testing.T) { leavesRoom(t, 4, "eve") }

// leavesRoom has the first of some tenants announce bodies until one is refused, where four have room, and the last one send
// one where room is left.
func leavesRoom(t *testing.T, most int, tenants ...string) {
	t.Helper()
	of := usual(t, tenants...)
	const long = 1 << 20
	of.config = func(c *Config) { c.MaxArriving = 4 * long }
	g := run(t, of, complete().roundTrip, alone(t))
	announce := func() (answer string) {
		conn := g.dial()
		announced := completionHead(fmt.Sprintf("Authorization: Bearer sk-eve\r\nContent-Length: %d\r\n", long)) + strings.Repeat(" ", prefetched)
		before := g.server.bodies.Taken()
		if _, err := io.WriteString(conn, announced); err != nil {
			t.Fatal(err)
		}
		answered := make(chan string, 1)
		go func() {
			first := make([]byte, len("HTTP/1.1 503"))
			_, _ = io.ReadFull(conn, first)
			answered <- string(first)
		}()
		eventually(t, "the body is counted or refused", func() bool {
			select {
			case answer = <-answered:
				return true
			default:
				return g.server.bodies.Taken() > before
			}
		})
		return answer
	}
	held := 0
	for answer := ""; answer == ""; held++ {
		if answer = announce(); answer != "" && answer != "HTTP/1.1 503" {
			t.Fatalf("body %d of one tenant: %s", held+1, answer)
		}
	}
	if held--; held != most { // without the one that is refused
		t.Errorf("%d bodies of one tenant were taken, want %d", held, most)
	}
	if len(tenants) == 1 {
		return
	}
	if got := g.post(`{"model":"m","prompt":"`+strings.Repeat("x", long)+`"}`, as(tenants[1])...); got.status != 200 {
		t.Errorf("another tenant's: %d %s", got.status, got.body)
	}
}

// A body that a budget refuses leaves it as it was.
func TestReservedBytes(t *testing.T) {
	budget := bytebudget.New(100)
	a, b := reservedBytes{budget: budget, bytes: 10}, reservedBytes{budget: budget, bytes: 10}
	for i, x := range []struct {
		of    *reservedBytes
		bytes int
		fits  bool
		now   int64
	}{{&a, 10, true, 0}, {&a, 5, true, 0}, {&a, 70, true, 60}, {&b, 51, false, 60}, {&b, 50, true, 100}, {&b, 51, false, 100}, {&a, 70, true, 100}, {&b, 9, true, 100}} {
		if fits := x.of.grow(x.bytes); fits != x.fits || budget.Taken() != x.now {
			t.Errorf("%d: %v, %d counted", i, fits, budget.Taken())
		}
	}
}

// What is given back twice is given back once: a request that a proxy asks for in vain is judged
// and ended by different hands.
func TestReservedBytes_GivenBackTwice(t *testing.T) {
	budget := bytebudget.New(1 << 20)
	r := reservedBytes{budget: budget, bytes: freeBytes}
	if !r.grow(3 * freeBytes) {
		t.Fatal("there is room")
	}
	for range 2 {
		r.release()
		if now := budget.Taken(); now != 0 {
			t.Errorf("%d bytes are counted", now)
		}
	}
}

// A body takes memory as it comes, four times as much each time, in the sizes that come back, otherwise never more than
// it may have or says that it has, and is counted as what it takes.
func TestBodyBuffer_Add(t *testing.T) {
	const most = 1 << 20
	for _, x := range []struct {
		name      string
		announced int
		pieces    []int
		length    int // that it comes to
		counted   int64
		err       error
	}{
		{"short", -1, []int{10, 20}, 30, 0, nil},
		{"as long as is free", freeBytes, []int{freeBytes}, freeBytes, 0, nil},
		{"one more", freeBytes + 1, []int{freeBytes, 1}, freeBytes + 1, freeBytes, nil},
		{"as it says", most, []int{freeBytes, 3 * freeBytes, most - 4*freeBytes}, most, most - freeBytes, nil},
		{"at once", 3 * freeBytes, []int{1}, 1, 3 * freeBytes, nil},
		{"not more at once", most, []int{1}, 1, roomAtOnce - freeBytes, nil},
		{"without a word", -1, []int{freeBytes, 1}, freeBytes + 1, 3 * freeBytes, nil},
		{"as long as it may be", -1, []int{most - 1, 1}, most, most - freeBytes, nil},
		{"longer than it may be", -1, []int{most, 1}, most, most - freeBytes, errBodyTooLarge},
		{"says that it is longer", most + 1, []int{1}, 0, 0, errBodyTooLarge},
		{"longer than it says", 10, []int{10, 1}, 11, 0, nil},
	} {
		s := decoder(most)
		b := s.newBodyBuffer(x.announced)
		var err error
		for _, n := range x.pieces {
			if err = b.add(make([]byte, n)); err != nil {
				break
			}
		}
		if !errors.Is(err, x.err) || len(b.data) != x.length || s.bodies.Taken() != x.counted || cap(b.data) > max(freeBytes, int(x.counted)+freeBytes) {
			t.Errorf("%s: %d bytes, room for %d, counted %d, %v", x.name, len(b.data), cap(b.data), s.bodies.Taken(), err)
		}
		b.counted.release()
		b.counted.release()
		if now := s.bodies.Taken(); now != 0 {
			t.Errorf("%s: %d bytes are counted when it is gone", x.name, now)
		}
	}
}

// A body of many small pieces is copied a few times, however many pieces it comes in.
func TestBodyBuffer_GrowsInSteps(t *testing.T) {
	for _, announced := range []int{-1, 512 << 10} {
		s := decoder(1 << 20)
		b := s.newBodyBuffer(announced)
		grown, room := 0, 0
		for i := range 512 {
			if err := b.add([]byte(strings.Repeat(strconv.Itoa(i%10), 1<<10))); err != nil {
				t.Fatal(err)
			}
			if cap(b.data) != room {
				grown, room = grown+1, cap(b.data)
			}
		}
		if grown > 6 || len(b.data) != 512<<10 || b.data[1<<10] != '1' {
			t.Errorf("announced %d: it grew %d times to %d bytes", announced, grown, len(b.data))
		}
	}
}

// A body that is read takes no more memory than its bytes want, in however small pieces they come:
// a short one is not counted, a longer one in steps.
func TestBodyBuffer_ReadAll(t *testing.T) {
	const most = 1 << 20
	for _, x := range []struct {
		announced, length int
		counted           int64
		err               error
	}{
		{-1, 0, 0, nil}, {-1, 300, 0, nil}, {300, 300, 0, nil}, {-1, freeBytes - 1, 0, nil}, {freeBytes, freeBytes, 0, nil},
		{freeBytes + 1, freeBytes + 1, 1, nil}, {-1, freeBytes + 1, 3 * freeBytes, nil}, {-1, most, most + 1 - freeBytes, nil}, {-1, most + 1, most + 1 - freeBytes, errBodyTooLarge},
	} {
		for _, size := range []int{100, most} {
			s := decoder(most)
			b := s.newBodyBuffer(x.announced)
			body, err := b.readAll(&pieceReader{bytes.Repeat([]byte("x"), x.length), size})
			if !errors.Is(err, x.err) || x.err == nil && len(body) != x.length || s.bodies.Taken() != x.counted {
				t.Errorf("%d bytes, announced %d, in pieces of %d: %d bytes, %d are counted, %v", x.length, x.announced, size, len(body), s.bodies.Taken(), err)
			}
		}
	}
}

// pieceReader reads so many bytes at once, at most.
type pieceReader struct {
	text []byte
	size int
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.text[:min(r.size, len(r.text))])
	r.text = r.text[n:]
	return n, nil
}

// A body of a usual announced length is read into the memory in which it stays.
func TestBodyBuffer_AUsualBodyIsGivenItsRoomAtOnce(t *testing.T) {
	const length = roomAtOnce - 1
	s := decoder(1 << 20)
	r := &pieceReader{bytes.Repeat([]byte("x"), length), 1}
	b := s.newBodyBuffer(length)
	if !b.counted.grow(length) {
		t.Fatal("there is no room")
	}
	var began *byte
	body, err := b.readAll(readerFunc(func(p []byte) (n int, err error) {
		if began == nil {
			began = &p[0]
		}
		r.size = len(p)/2 + 1
		if n, err = r.Read(p); len(r.text) == 0 {
			err = io.EOF // with the last of it, as fasthttp says it
		}
		return n, err
	}))
	if err != nil || len(body) != length || &body[0] != began {
		t.Errorf("%d bytes, %v, or they were moved", len(body), err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
