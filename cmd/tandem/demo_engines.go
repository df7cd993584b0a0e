package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// childEngine is a simulated engine that runs as a process of its own, so that
// one can kill it and watch the gateway cope.
type childEngine struct {
	role   pools.Role
	addr   string
	events string // where it publishes its KV
	replay string
	cmd    *exec.Cmd
	exited chan struct{}
	stop   sync.Once
}

type childEngines []*childEngine

// startEngines starts two engines a role and prints who they are. What it
// started is returned with the error, so that it can be stopped.
func startEngines(ctx context.Context, binary string, out io.Writer) (childEngines, error) {
	var all childEngines
	roles := []pools.Role{pools.Prefill, pools.Prefill, pools.Decode, pools.Decode}
	free, err := freeAddresses(3 * len(roles))
	if err != nil {
		return nil, err
	}
	for i, role := range roles {
		e, err := startEngine(ctx, binary, role, free[3*i:3*i+3], out)
		if err != nil {
			return all, err
		}
		all = append(all, e)
		_, _ = fmt.Fprintf(out, "%-9s http://%s   pid %d\n", role, e.addr, e.cmd.Process.Pid)
	}
	return all, nil
}

// startEngine starts one that listens for requests, publishes KV events and replays
// them at the three addresses.
func startEngine(ctx context.Context, binary string, role pools.Role, at []string, out io.Writer) (*childEngine, error) {
	addr, events, replay := at[0], at[1], at[2]
	// An engine binds where its endpoint has a wildcard, and dials otherwise.
	anywhere := func(addr string) string { return "tcp://*:" + addr[strings.LastIndex(addr, ":")+1:] }
	cmd := exec.CommandContext(ctx, binary, "engine", "--listen", addr, "--role", role.String(), "--model", demoModel,
		"--events", anywhere(events), "--replay", anywhere(replay))
	cmd.Stderr = os.Stderr
	// A signal from the terminal must reach the gateway first, so that it can
	// drain; and an engine must not outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return nil } // stop ends it, after the drain
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a simulated engine: %w", err)
	}
	e := &childEngine{
		role: role, addr: addr, events: "tcp://" + events, replay: "tcp://" + replay,
		cmd: cmd, exited: make(chan struct{}),
	}
	go func() {
		defer close(e.exited)
		_ = cmd.Wait() // its fate is printed or known
		e.stop.Do(func() { _, _ = fmt.Fprintf(out, "%s engine with pid %d is gone\n", role, cmd.Process.Pid) })
	}()
	return e, nil
}

// stop ends all engines and waits for them.
func (all childEngines) stop() error {
	var failed []error
	for _, e := range all {
		e.stop.Do(func() {}) // from here on its end is no news
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, e := range all {
		select {
		case <-e.exited:
		case <-time.After(3 * time.Second):
			_ = e.cmd.Process.Kill()
			<-e.exited
			failed = append(failed, fmt.Errorf("engine with pid %d had to be killed", e.cmd.Process.Pid))
		}
	}
	return errors.Join(failed...)
}
