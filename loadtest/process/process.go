// Package process runs the commands of a binary as processes, so that what is tried on
// them is what happens in life: they can be killed, stopped dead, and watched.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is one running command. It does not outlive the process that started it.
type Process struct {
	Name string
	cmd  *exec.Cmd
	said *tail // on stderr

	ending sync.Once     // done: its end is expected
	exited chan struct{} // closed when it is gone
}

// stderrTime is how long the stderr of a process is read once that is gone: children of its own may hold it open.
const stderrTime = time.Second

// Start runs a binary with arguments and returns at once. What it says on stderr goes to log,
// which stays open until it is gone.
// gone is called when it ends without having been told to; nil: nothing is called.
func Start(name string, log io.Writer, gone func(*Process), binary string, args ...string) (*Process, error) {
	cmd := exec.Command(binary, args...)
	said := &tail{log: log}
	cmd.Stderr, cmd.WaitDelay = said, stderrTime
	// A signal from the terminal must reach only the first of them: it stops the others
	// in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, said: said, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // how it ended is in its log
		p.ending.Do(func() {
			if gone != nil {
				gone(p)
			}
		})
	}()
	return p, nil
}

// PID is its process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends it as a crash does, and waits until it is gone.
func (p *Process) Kill() {
	p.ending.Do(func() {})
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.exited
}

// Hang stops it dead with its connections open, Continue lets it go on.
func (p *Process) Hang()     { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *Process) Continue() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// throttlePeriod is how often a throttled process runs; the kernel's CPU limits have the
// same period (cpu.max of a cgroup).
const throttlePeriod = 100 * time.Millisecond

// Throttle lets it run only for a share of each tenth of a second, 0..1, as a CPU limit
// does, until stop is called. It then runs.
func (p *Process) Throttle(share float64) (stop func()) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	runs := time.Duration(share * float64(throttlePeriod))
	go func() {
		defer close(stopped)
		defer p.Continue()
		for {
			for _, part := range []struct {
				begin func()
				lasts time.Duration
			}{{p.Hang, throttlePeriod - runs}, {p.Continue, runs}} {
				part.begin()
				select {
				case <-ended:
					return
				case <-p.exited:
					return
				case <-time.After(part.lasts):
				}
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(ended)
		<-stopped
	})
}

// Stop asks it to end, and kills it when it has not after a time: that is an error.
func (p *Process) Stop(within time.Duration) error {
	p.ending.Do(func() {})
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	select {
	case <-p.exited:
		return nil
	case <-time.After(within):
	}
	p.Kill()
	return fmt.Errorf("%s with pid %d had to be killed", p.Name, p.PID())
}

// StopAll stops several at the same time.
func StopAll(all []*Process, within time.Duration) error {
	failed := make([]error, len(all))
	var stopping sync.WaitGroup
	for i, p := range all {
		stopping.Go(func() { failed[i] = p.Stop(within) })
	}
	stopping.Wait()
	return errors.Join(failed...)
}

// Answers waits until a GET of the URL answers 200. Where the process or the context ends before,
// the error has what the process said last.
func (p *Process) Answers(ctx context.Context, url string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("ask %s: %w", p.Name, err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w%s", p.Name, ctx.Err(), p.stderrTail())
		case <-p.exited:
			return fmt.Errorf("%s ended%s", p.Name, p.stderrTail())
		case <-tick.C:
		}
	}
}

// stderrTail is what it said last, as the end of an error.
func (p *Process) stderrTail() string {
	if said := p.said.String(); said != "" {
		return ": " + said
	}
	return ""
}
