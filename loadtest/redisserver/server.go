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
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server process of one test. Its port stays the same over
// restarts, its data does not survive them.
type Server struct {
	t    *testing.T
	port int
	args []string
	tls  *tls.Config // nil: it speaks plain TCP
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// Start runs redis-server on a free port until the test ends. More arguments are
// those of redis-server, such as "--maxmemory", "1mb". A machine without
// redis-server fails the test: make test installs it.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, port: freePort(t), args: args}
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port
}

// Addr is where it listens.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Client returns a client of its own, closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := s.client()
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.Addr(), TLSConfig: s.tls, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
}

// Restart starts it, empty, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	args := append([]string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.t.TempDir()}, s.args...)
	s.run(args...)
}

// run starts the process and waits until it answers.
func (s *Server) run(args ...string) {
	s.t.Helper()
	s.cmd = exec.Command(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"), args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start redis-server: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if s.ping() {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("redis-server does not answer:\n%s", s.log.String())
		}
	}
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
	_ = s.cmd.Wait() // it was killed
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
