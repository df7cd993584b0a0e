// Package nameserver is a real DNS server for tests, whose records they change.
package nameserver

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Server answers on UDP until the test ends.
type Server struct {
	addr string

	mu      sync.Mutex
	records map[string][]string // zone-file lines by "name type"
	rcode   int                 // of all answers, while not success
	asked   int
	delay   func(name string) // before an answer; nil: none
}

// Start returns a server without records.
func Start(t *testing.T) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{addr: conn.LocalAddr().String(), records: make(map[string][]string)}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(s.answer)}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// Addr is host:port of the server.
func (s *Server) Addr() string { return s.addr }

// Resolver asks the server.
func (s *Server) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.addr)
	}}
}

func (s *Server) answer(w dns.ResponseWriter, question *dns.Msg) {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay != nil {
		delay(question.Question[0].Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	m := new(dns.Msg).SetReply(question)
	m.Rcode = s.rcode
	q := question.Question[0]
	for _, line := range s.records[q.Name+" "+dns.TypeToString[q.Qtype]] {
		if rr, err := dns.NewRR(line); err == nil && s.rcode == dns.RcodeSuccess {
			m.Answer = append(m.Answer, rr)
		}
	}
	_ = w.WriteMsg(m) // the client asks again
}

// Set replaces the records of a name: lines such as "a.test. 0 IN A 127.0.0.2".
func (s *Server) Set(name, kind string, lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name+" "+kind] = lines
}

// Delay has wait called with the name that is asked for before each answer.
func (s *Server) Delay(wait func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = wait
}

// Fail gives all answers a code, and waits until a few lookups have got it.
func (s *Server) Fail(t *testing.T, rcode int) {
	t.Helper()
	s.mu.Lock()
	s.rcode = rcode
	enough := s.asked + 12
	s.mu.Unlock()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		if asked >= enough {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("names are not asked for")
		}
	}
}
