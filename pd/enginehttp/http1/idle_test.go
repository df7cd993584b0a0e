package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memoryServer serves connections in memory, for tests whose time is not the world's.
type memoryServer struct {
	mu   sync.Mutex
	open int
	made int
}

func (s *memoryServer) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.made++
	go func() {
		in := bufio.NewReader(there)
		for {
			req, err := http.ReadRequest(in)
			if err == nil {
				_, err = io.Copy(io.Discard, req.Body)
			}
			if err == nil {
				_, err = io.WriteString(there, plainAnswer)
			}
			if err != nil {
				_ = there.Close()
				s.mu.Lock()
				s.open--
				s.mu.Unlock()
				return
			}
		}
	}()
	return here, nil
}

func (s *memoryServer) connections() (open, made int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.made
}

// atOnce sends requests to hosts, all of which are under way at once, and ends them in this order.
func atOnce(t *testing.T, transport http.RoundTripper, hosts ...string) {
	t.Helper()
	var bodies []io.ReadCloser
	for _, host := range hosts {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", http.NoBody)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, resp.Body)
	}
	for _, body := range bodies {
		_, _ = io.Copy(io.Discard, body)
		_ = body.Close()
	}
}

// Connections are kept until they were idle for as long as that is allowed, each by itself, and are closed
// then without a request's doing.
func TestIdle_EndsWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(memoryServer)
		transport := &Transport{DialContext: server.dial, IdleTimeout: 4 * time.Second}
		want := func(wantOpen, wantMade int, when string) {
			t.Helper()
			if open, made := server.connections(); open != wantOpen || made != wantMade {
				t.Errorf("%s: %d connections of %d are open, want %d of %d", when, open, made, wantOpen, wantMade)
			}
		}
		atOnce(t, transport, "a", "a", "b")
		want(3, 3, "at first")
		time.Sleep(3 * time.Second)
		atOnce(t, transport, "a")
		want(3, 3, "used again")
		time.Sleep(1100 * time.Millisecond)
		want(1, 3, "those that were not used again")
		time.Sleep(2800 * time.Millisecond)
		atOnce(t, transport, "a", "b")
		want(2, 4, "used shortly before")
		time.Sleep(5 * time.Second)
		want(0, 4, "all")
		if len(transport.idle.hosts) != 0 || transport.idle.timer != nil || transport.idle.count != 0 {
			t.Errorf("%+v is left", &transport.idle)
		}
		atOnce(t, transport, "a")
		time.Sleep(5 * time.Second)
		want(0, 5, "and again")
	})
}

// One that is too old is not used, though nothing has closed it yet.
func TestIdle_AnOldOneIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(memoryServer)
		transport := &Transport{DialContext: server.dial, IdleTimeout: 4 * time.Second}
		atOnce(t, transport, "a")
		c := transport.idle.hosts[key{address: "a:80"}].conns[0]
		c.since = c.since.Add(-4*time.Second - 1)
		atOnce(t, transport, "a")
		if _, made := server.connections(); made != 2 {
			t.Errorf("%d connections", made)
		}
		transport.CloseIdleConnections()
		time.Sleep(5 * time.Second)
	})
}

// As many are kept as a host may have, and all hosts; beyond that the one that was idle for longest goes.
func TestIdle_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(memoryServer)
		transport := &Transport{DialContext: server.dial, MaxIdle: 4, MaxIdlePerHost: 2}
		atOnce(t, transport, "a", "a", "a")
		if open, _ := server.connections(); open != 2 {
			t.Errorf("%d connections to one host are open", open)
		}
		time.Sleep(time.Second)
		atOnce(t, transport, "b", "b")
		time.Sleep(time.Second)
		atOnce(t, transport, "a")
		time.Sleep(time.Second)
		atOnce(t, transport, "c")
		if open, made := server.connections(); open != 4 || made != 6 || transport.idle.count != 4 {
			t.Errorf("%d connections of %d are open, %d counted", open, made, transport.idle.count)
		}
		atOnce(t, transport, "b", "b", "a", "c") // all but the other one of a
		if _, made := server.connections(); made != 6 {
			t.Errorf("%d connections were made", made)
		}
		transport.CloseIdleConnections()
		if open, _ := server.connections(); open != 0 {
			t.Errorf("%d are open", open)
		}
	})
}

// The connections that are idle are closed when that is asked for, and the one under way when it becomes
// idle; a later request's is kept.
func TestIdle_IsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(memoryServer)
		transport := &Transport{DialContext: server.dial}
		atOnce(t, transport, "a", "a")
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a/", http.NoBody)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		transport.CloseIdleConnections()
		if open, _ := server.connections(); open != 1 {
			t.Errorf("%d are open, one is under way", open)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if open, _ := server.connections(); open != 0 {
			t.Errorf("%d are open", open)
		}
		atOnce(t, transport, "a")
		if open, _ := server.connections(); open != 1 {
			t.Errorf("%d are open", open)
		}
		transport.CloseIdleConnections()
	})
}

// Without keep-alives the server is told so, and each request has its connection.
func TestIdle_NoneIsKept(t *testing.T) {
	closes := make(chan bool, 1)
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		if req, err := http.ReadRequest(in); err == nil {
			closes <- req.Close
			_, _ = io.WriteString(conn, plainAnswer)
			_, _ = io.Copy(io.Discard, in) // until the client closes
		}
	})
	for range 2 {
		if text, err := ask(t, &Transport{DisableKeepAlives: true}, http.MethodGet, e.url, "", nil); err != nil || text != "ok" || !<-closes {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// Requests from many goroutines share connections, and none gets another's answer.
func TestTransport_IsUsedByMany(t *testing.T) {
	e := newEngine(t, func(_ *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			if len(body)%3 == 0 {
				_, _ = io.WriteString(conn, chunked+"2\r\n->\r\n")
				_, _ = fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
				continue
			}
			_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n->%s", ok, len(body)+2, body)
		}
	})
	transport := &Transport{MaxIdlePerHost: 4}
	closeIdle(t, transport)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for k := range 50 {
				body := strings.Repeat(string(rune('a'+i)), 1+i*997+k)
				if text, err := ask(t, transport, http.MethodPost, e.url, body, nil); err != nil || text != "->"+body {
					t.Errorf("%d bytes of %d, %v", len(text), len(body), err)
				}
			}
		})
	}
	all.Wait()
	if n := e.connections.Load(); n > 16*50/2 {
		t.Errorf("%d connections for %d requests", n, 16*50)
	}
}

// What a request comes to is traced as by net/http; of what happens at once there the order is not compared.
func TestTransport_IsTraced(t *testing.T) {
	events := map[string][]string{}
	for _, client := range []string{"own", "net/http"} {
		e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
			for e.take(in) {
				_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"+plainAnswer)
			}
		})
		var mu sync.Mutex
		note := func(event string) {
			mu.Lock()
			defer mu.Unlock()
			events[client] = append(events[client], event)
		}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GetConn: func(to string) { note("get " + strings.Split(to, ":")[0]) },
			GotConn: func(c httptrace.GotConnInfo) {
				note(fmt.Sprintf("got %v %v %v %v", c.Reused, c.WasIdle, c.IdleTime > 0, c.Conn != nil))
			},
			ConnectDone:          func(string, string, error) { note("connected") },
			PutIdleConn:          func(err error) { note(fmt.Sprintf("put %v", err)) },
			GotFirstResponseByte: func() { note("first byte") },
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				note(fmt.Sprintf("%d %v", code, header))
				return nil
			},
			WroteHeaders: func() { note("wrote headers") },
			WroteRequest: func(i httptrace.WroteRequestInfo) { note(fmt.Sprintf("wrote %v", i.Err)) },
		})
		transport := clients(nil)[client]
		closeIdle(t, transport)
		for _, body := range []string{"", "a", strings.Repeat("a", 1<<20)} {
			if _, err := ask(t, transport, http.MethodPost, e.url, body, func(r *http.Request) { *r = *r.WithContext(ctx) }); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		slices.Sort(events[client])
		mu.Unlock()
	}
	if !slices.Equal(events["own"], events["net/http"]) {
		t.Errorf("\n     own %q\nnet/http %q", events["own"], events["net/http"])
	}
}

// A trace may end a request with what it makes of a 1xx.
func TestTransport_ATraceMayRefuse(t *testing.T) {
	e := newEngine(t, func(e *engine, _ int32, conn *net.TCPConn, in *bufio.Reader) {
		e.take(in)
		_, _ = io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\n\r\n"+plainAnswer)
	})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { return errLeft }})
	if _, err := ask(t, new(Transport), http.MethodGet, e.url, "", func(r *http.Request) { *r = *r.WithContext(ctx) }); !errors.Is(err, errLeft) {
		t.Errorf("%v", err)
	}
}
