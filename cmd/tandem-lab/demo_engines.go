package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/pools"
)

// childEngine is a simulated engine that runs as a process of its own, so that
// one can kill it and watch the gateway cope.
type childEngine struct {
	role   pools.Role
	rack   string
	addr   string
	events string // where it publishes its KV
	replay string
	*process.Process
}

type childEngines []*childEngine

// uplink is how fast KV leaves a rack of the demo, in bytes per second: a quarter of the speed within, as the gateway
// assumes of a zone.
const uplink = "12.5e9"

// startEngines starts two engines a role, in two racks, and prints their addresses. What it
// started is returned with the error, so that it can be stopped.
func startEngines(binary string, out io.Writer) (childEngines, error) {
	var all childEngines
	roles := []pools.Role{pools.Prefill, pools.Prefill, pools.Decode, pools.Decode}
	free, err := process.FreeAddresses(3 * len(roles))
	if err != nil {
		return nil, err
	}
	for i, role := range roles {
		e, err := startEngine(binary, role, fmt.Sprintf("rack-%d", i%2), free[3*i:3*i+3], out)
		if err != nil {
			return all, err
		}
		all = append(all, e)
		_, _ = fmt.Fprintf(out, "%-9s http://%s   pid %d\n", role, e.addr, e.PID())
	}
	return all, nil
}

// startEngine starts one that listens for requests, publishes KV events and replays
// them at the three addresses.
func startEngine(binary string, role pools.Role, rack string, at []string, out io.Writer) (*childEngine, error) {
	addr, events, replay := at[0], at[1], at[2]
	// An engine binds where its endpoint has a wildcard, and dials otherwise.
	anywhere := func(addr string) string { return "tcp://*:" + addr[strings.LastIndex(addr, ":")+1:] }
	gone := func(p *process.Process) {
		_, _ = fmt.Fprintf(out, "%s engine with pid %d is gone\n", role, p.PID())
	}
	p, err := process.Start(role.String()+" engine", os.Stderr, gone, binary, "engine", "--listen", addr, "--role", role.String(),
		"--model", demoModel, "--rack", rack, "--uplink-bytes-per-second", uplink, "--events", anywhere(events), "--replay", anywhere(replay))
	if err != nil {
		return nil, err
	}
	return &childEngine{role: role, rack: rack, addr: addr, events: "tcp://" + events, replay: "tcp://" + replay, Process: p}, nil
}

// stop ends all engines and waits for them.
func (all childEngines) stop() error {
	processes := make([]*process.Process, len(all))
	for i, e := range all {
		processes[i] = e.Process
	}
	return process.StopAll(processes, 10*time.Second)
}
