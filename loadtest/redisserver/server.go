// Package redisserver runs a real redis-server for tests, which can kill, stop,
// empty and restart it: what a gateway must survive. With REDIS_SERVER in the
// environment it runs that program instead, such as a valkey-server.
package redisserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Server is a redis-server process of one test. Its port stays the same over
// restarts, its data does not survive them.
type Server struct {
	t     testing.TB
	port  int
	args  []string
	tls   *tls.Config // nil: it speaks plain TCP
	files Files       // of its TLS

	cmd    *exec.Cmd // nil: it was killed
	exited chan struct{}
	log    bytes.Buffer // whole once it has exited
}

// Start runs redis-server on a free port until the test ends. More arguments are
// those of redis-server, such as "--maxmemory", "1mb". A machine without
// redis-server fails the test: make test installs it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, args: args}
	s.start()
	return s
}

// start runs it for the first time. Another process may take the port before it does.
func (s *Server) start() {
	s.t.Helper()
	s.t.Cleanup(s.Kill)
	for tries := 1; ; tries++ {
		s.port = freePort(s.t)
		err := s.run(s.arguments()...)
		if err == nil {
			return
		}
		if s.Kill(); tries == 3 {
			s.t.Fatal(err)
		}
	}
}

// arguments are those of its command line.
func (s *Server) arguments() []string {
	port := []string{"--port", strconv.Itoa(s.port)}
	if s.tls != nil {
		port = []string{"--port", "0", "--tls-port", strconv.Itoa(s.port)}
	}
	return slices.Concat(port, []string{"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.t.TempDir()}, s.args)
}

// freePort returns a TCP port on which no process listens.
func freePort(t testing.TB) int {
	t.Helper()
	addrs, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	return int(netip.MustParseAddrPort(addrs[0]).Port())
}

// Addr is where it listens.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// clientTime is how long a client waits: a busy machine may let Redis wait too.
const clientTime = 10 * time.Second

// Client returns a client of its own, closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := s.client()
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.Addr(), TLSConfig: s.tls, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: clientTime, ReadTimeout: clientTime, WriteTimeout: clientTime,
	})
}

// Restart starts it, empty, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.run(s.arguments()...); err != nil {
		s.t.Fatal(err)
	}
}

// run starts the process and waits until it answers.
func (s *Server) run(args ...string) error {
	cmd, exited := exec.Command(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"), args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.cmd, s.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // that it ended is all there is to know
	}()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-exited:
			return fmt.Errorf("redis-server ended:\n%s", s.log.String())
		default:
		}
		if s.ping() {
			return nil
		}
	}
	s.Kill()
	return fmt.Errorf("redis-server does not answer:\n%s", s.log.String())
}

// ping asks without a client library, so that tests may count connections.
func (s *Server) ping() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), 100*time.Millisecond)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if s.tls != nil {
		conn = tls.Client(conn, s.tls)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprint(conn, "PING\r\n")
	answer := make([]byte, 64)
	n, _ := conn.Read(answer)
	// A server that wants a password answers too.
	return strings.HasPrefix(string(answer[:n]), "+PONG") || strings.HasPrefix(string(answer[:n]), "-NOAUTH")
}

// Kill ends it at once, as a crash does.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Hang stops the process: connections stay, nothing is answered.
func (s *Server) Hang() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue ends Hang.
func (s *Server) Continue() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Do runs a command on it, such as "FLUSHALL".
func (s *Server) Do(args ...any) {
	s.t.Helper()
	c := s.client()
	defer func() { _ = c.Close() }()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}

// Ask runs a command on it and returns the answer as text, "" if it has none.
func (s *Server) Ask(args ...any) string {
	c := s.client()
	defer func() { _ = c.Close() }()
	answer, err := c.Do(context.Background(), args...).Text()
	if err != nil {
		return ""
	}
	return answer
}
