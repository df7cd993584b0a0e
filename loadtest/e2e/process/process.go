// Package process runs the programs that the tests are about, each as long as the
// test that started it.
package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// ReadyWithin bounds every wait for a process to answer.
	ReadyWithin = 60 * time.Second
	// stopWithin is what a process gets between SIGTERM and SIGKILL.
	stopWithin = ReadyWithin
	// logKept is how many bytes of a process's output are kept for a failure report.
	logKept = 16 << 10
)

// Process is a program under test. It is stopped, and waited for, at the end of the
// test that started it; the end of its output is printed if that test failed.
type Process struct {
	Cmd    *exec.Cmd
	Exited chan struct{} // closed once it has ended
	name   string
	output *tail
}

// Root returns the repository's directory.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, ".ci")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("no .ci above the working directory")
			t.Fatal(err)
		}
	}
	t.Fatal(err)
	return ""
}

// Start runs a program, bin being absolute or relative to the repository, with
// variables added to the environment.
func Start(t testing.TB, env []string, name, bin string, args ...string) *Process {
	t.Helper()
	if !filepath.IsAbs(bin) {
		bin = filepath.Join(Root(t), bin)
	}
	p, err := Launch(env, name, bin, args...)
	if err != nil {
		t.Fatalf("%v (`make e2e` builds what the tests need)", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		p.LogIfFailed(t)
	})
	return p
}

// Launch is Start for callers that stop the process themselves; bin is absolute.
func Launch(env []string, name, bin string, args ...string) (*Process, error) {
	p := &Process{name: name, Cmd: exec.Command(bin, args...), output: &tail{}, Exited: make(chan struct{})}
	p.Cmd.Env = append(os.Environ(), env...)
	p.Cmd.Stdout, p.Cmd.Stderr = p.output, p.output
	p.Cmd.WaitDelay = time.Second // what it has started may hold its output
	if err := p.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		// Callers that need the exit status read Cmd.ProcessState.
		_ = p.Cmd.Wait()
		close(p.Exited)
	}()
	return p, nil
}

// LogIfFailed prints the end of the process's output if the test has failed.
func (p *Process) LogIfFailed(t testing.TB) {
	t.Helper()
	if t.Failed() {
		t.Logf("end of the output of %s (%v):\n%s", p.name, p.Cmd.ProcessState, p.output)
	}
}

// Output returns the end of what the process has printed.
func (p *Process) Output() string { return p.output.String() }

// Stop asks the process to end, and kills it if it does not, which is an error. A
// process that has ended is no error.
func (p *Process) Stop() error {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended already
	select {
	case <-p.Exited:
		return nil
	case <-time.After(stopWithin):
		_ = p.Cmd.Process.Kill()
		<-p.Exited
		return fmt.Errorf("%s ignored SIGTERM for %v", p.name, stopWithin)
	}
}

// Kill ends a process at once.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.Cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("kill %s: %v", p.name, err)
	}
	<-p.Exited
}

// WaitFor polls until done says nil, and fails the test with the last error after
// within, or at once when p ends. A nil p stands for no process.
func WaitFor(t testing.TB, p *Process, what string, within time.Duration, done func() error) {
	t.Helper()
	var exited chan struct{}
	if p != nil {
		exited = p.Exited
	}
	deadline := time.After(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-exited:
			t.Fatalf("%s ended while waiting for %s: %v", p.name, what, err)
		case <-deadline:
			t.Fatalf("waited %v for %s: %v", within, what, err)
		}
	}
}

// Answers is a condition for WaitFor: GET url says 200.
func Answers(url string) func() error {
	return func() error {
		res, err := get(url, 2*time.Second)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
}

// JSON reads what GET url says.
func JSON(url string, into any) error {
	res, err := get(url, 30*time.Second)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(into)
}

// SeesUp is a condition for WaitFor: the gateway behind an admin URL sees so many servers up.
func SeesUp(admin string, want int) func() error {
	return func() error {
		var servers []struct {
			Up bool `json:"up"`
		}
		if err := JSON(admin+"/debug/servers", &servers); err != nil {
			return err
		}
		up := 0
		for _, s := range servers {
			if s.Up {
				up++
			}
		}
		if up != want {
			return fmt.Errorf("%d of %d servers are up", up, want)
		}
		return nil
	}
}

// get returns an answer of 200, whose body the caller closes. Reading it counts into the time.
func get(url string, within time.Duration) (*http.Response, error) {
	client := &http.Client{Timeout: within}
	res, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", url, res.Status)
	}
	return res, nil
}

// Port is that of a host:port.
func Port(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Ports are below those that the system gives to outgoing connections, one of which could take a port
// before it is listened on.
const firstPort, ports = 10000, 22000

// given remembers the ports that FreeAddresses gave, of the last ten thousand: whoever got one may listen on it
// when another one has been given.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: make(map[int]bool)}

// FreeAddress returns a loopback host:port on which no process listens at the moment, and which was
// not given before.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return FreeAddresses(t, 1)
}

// FreeAddresses is FreeAddress for programs that listen on several ports, each one above the one
// before it: it returns the first.
func FreeAddresses(t testing.TB, n int) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	if len(given.ports)+n > ports/2 {
		clear(given.ports)
	}
	for range 100 {
		first := firstPort + rand.IntN(ports)
		if !listenFrom(first, n) {
			continue
		}
		for i := range n {
			given.ports[first+i] = true
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(first))
	}
	t.Fatalf("no %d adjacent ports are free", n)
	return ""
}

// listenFrom listens for a moment on adjacent loopback ports, and reports whether it could on all, and none was given.
func listenFrom(first, n int) bool {
	for i := range n {
		if given.ports[first+i] {
			return false
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)))
		if err != nil {
			return false
		}
		defer listener.Close()
	}
	return true
}

// tail is an io.Writer that keeps the last logKept bytes.
type tail struct {
	mu   sync.Mutex // guards kept
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - logKept; over > 0 {
		t.kept = bytes.Clone(t.kept[over:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
