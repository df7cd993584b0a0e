package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// readyWithin bounds every wait for a process to answer.
	readyWithin = 60 * time.Second
	// stopWithin is what a process gets between SIGTERM and SIGKILL.
	stopWithin = 20 * time.Second
	// logKept is how many bytes of a process's output are kept for a failure report.
	logKept = 16 << 10
)

// process is a program under test. It is stopped, and waited for, at the end of the
// test that started it; the end of its output is printed if that test failed.
type process struct {
	name   string
	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed once Wait has returned
}

// start runs a program from the repository, bin being relative to its root.
func start(t *testing.T, name, bin string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, name, bin, args...)
}

// startWith is start with variables added to the environment.
func startWith(t *testing.T, env []string, name, bin string, args ...string) *process {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", bin))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is not there; `make e2e` builds what the tests need: %v", bin, err)
	}
	p := &process{name: name, cmd: exec.Command(path, args...), output: &tail{}, exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		// The exit status is read from cmd.ProcessState by those who care.
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("end of the output of %s (%v):\n%s", name, p.cmd.ProcessState, p.output)
		}
	})
	return p
}

// stop asks the process to end, and kills it if it does not.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-p.exited // it has ended already
		return
	}
	select {
	case <-p.exited:
	case <-time.After(stopWithin):
		t.Errorf("%s ignored SIGTERM for %v", p.name, stopWithin)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// waitFor polls until done says nil, and fails the test with the last error after
// within, or at once when p ends. A nil p stands for no process.
func waitFor(t *testing.T, p *process, what string, within time.Duration, done func() error) {
	t.Helper()
	var exited chan struct{}
	if p != nil {
		exited = p.exited
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

// answers is a condition for waitFor: GET url says 200.
func answers(url string) func() error {
	client := &http.Client{Timeout: 2 * time.Second}
	return func() error {
		res, err := client.Get(url)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, res.Status)
		}
		return nil
	}
}

// freeAddress returns a loopback host:port that nobody listens on at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
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
