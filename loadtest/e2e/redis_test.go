package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// redisServer is a real redis-server, which keeps its address over restarts and
// nothing else.
type redisServer struct {
	addr    string
	process *process.Process
}

// startRedis runs Debian's redis-server.
func startRedis(t *testing.T) *redisServer {
	t.Helper()
	r := &redisServer{addr: freeAddress(t)}
	r.restart(t)
	return r
}

// restart starts it again, empty, and waits until it answers. More arguments are those of
// redis-server.
func (r *redisServer) restart(t *testing.T, more ...string) {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("the Debian package redis-server is missing: %v", err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if bin, err = filepath.Rel(root, bin); err != nil { // start wants it so
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, more...)
	r.process = start(t, "redis", bin, args...)
	waitFor(t, r.process, "redis-server to answer", readyWithin, func() error {
		answer, err := r.ask("PING")
		if err == nil && answer != "PONG" {
			err = fmt.Errorf("it says %q", answer)
		}
		return err
	})
}

// ask sends one command and returns the answer, which must be a short one: a line, or
// a string without line ends. The empty string stands for no value.
func (r *redisServer) ask(command ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.Join(command, " ")); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	if err != nil {
		return "", err
	}
	switch head, rest, _ := strings.Cut(string(answer[:n]), "\r\n"); head[:1] {
	case "-":
		return "", fmt.Errorf("%v: %s", command, head)
	case "$":
		return strings.TrimSuffix(rest, "\r\n"), nil
	default:
		return head[1:], nil
	}
}
