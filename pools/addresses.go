package pools

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// addressBeat is the time between two lookups of a server's names.
	addressBeat = 30 * time.Second
	// unresolvedBeat is that time while one of its names has never been resolved.
	unresolvedBeat = 3 * time.Second
	// askedPause is the least time between two lookups for the sake of hand-offs, however
	// many names a server invents.
	askedPause = 100 * time.Millisecond
	// maxAsked bounds the hosts of hand-offs that are looked up for one server, and those
	// that are reported.
	maxAsked = 8
	// keepAsked is how long a host is looked up that no hand-off names any more.
	keepAsked = 10 * time.Minute
	// maxHostName is the longest host name in bytes.
	maxHostName = 253
)

// loopback stands for all addresses of the machine itself, which mean a different machine
// to each reader.
var loopback = netip.MustParseAddr("127.0.0.1")

// Ownership is what is known of a host that a server's hand-off names; the worst is last.
type Ownership uint8

const (
	OwnHost     Ownership = iota // the server's
	UnknownHost                  // not looked up yet, not resolved, or not with all of its addresses the server's
	ForeignHost                  // certainly not the server's
)

// addresses are what is known of where a server is, to judge the hosts that its hand-offs
// name. They are looked up by run: requests never wait for a name.
type addresses struct {
	known atomic.Pointer[addressTable] // nil before the first lookup
	asks  chan struct{}                // a host is to be looked up that is not in the table
	first chan struct{}                // closed when the server's names were looked up once

	mu       sync.Mutex           // guards asked and reported
	asked    map[string]time.Time // by host: when a hand-off named it last
	reported map[string]uint64    // foreign hosts, by the life of the server that named them
}

// addressTable is immutable.
type addressTable struct {
	own map[string][]netip.Addr // by the server's host and that of its kv-address; empty: not resolved yet
	// literal: the hosts are addresses, and what is known of them cannot become old.
	literal bool
	asked   map[string][]netip.Addr // by host of a hand-off, looked up after it was named; empty: not resolved
}

func newAddresses() *addresses {
	return &addresses{asks: make(chan struct{}, 1), first: make(chan struct{}), asked: make(map[string]time.Time), reported: make(map[string]uint64)}
}

// kvHosts are the hosts that the server's hand-offs may name: its own and that of its
// kv-address.
func (s Spec) kvHosts() []string {
	bare := s
	bare.KVAddress = ""
	own, _, _ := bare.kvHostPort(0) // the spec was validated
	other, _, _ := s.kvHostPort(0)
	return slices.Compact([]string{own, other})
}

// JudgeHost returns whose a host is that the server's hand-off names: the server's own, if it
// is its host or that of its kv-address by name, or by all of its addresses. Loopback is the
// server's where the reader runs on the same machine. An unknown host is looked up for the
// next hand-off.
func (s *Server) JudgeHost(host string, reader *Server) Ownership {
	if slices.ContainsFunc(s.kvHosts(), func(own string) bool { return sameName(own, host) }) {
		return OwnHost
	}
	if host == "" || len(host) > maxHostName {
		return UnknownHost
	}
	table := s.addresses.table()
	ip, literal := literalAddress(host)
	if literal && ip == loopback {
		return table.judgeLoopback(reader.addresses.table())
	}
	named, looked := table.asked[host]
	if literal {
		named, looked = []netip.Addr{ip}, looked || table.literal
	}
	is := table.judge(named, looked)
	if !literal || is != OwnHost && !table.literal {
		s.addresses.ask(host)
	}
	return is
}

// judge returns whose the addresses are that a host has. What is not the server's is foreign
// only if it was looked up, and all of the server's hosts are resolved.
func (t *addressTable) judge(named []netip.Addr, looked bool) Ownership {
	switch {
	case len(named) == 0:
		return UnknownHost
	case !slices.ContainsFunc(named, func(ip netip.Addr) bool { return !t.has(ip) }):
		return OwnHost
	case looked && t.complete() && !slices.ContainsFunc(named, t.has):
		return ForeignHost
	}
	return UnknownHost
}

// judgeLoopback returns whose loopback is to a reader, of which theirs is known.
func (t *addressTable) judgeLoopback(theirs *addressTable) Ownership {
	switch {
	case t.has(loopback) || slices.ContainsFunc(theirs.all(), t.has):
		return OwnHost
	case t.complete() && theirs.complete():
		return ForeignHost
	}
	return UnknownHost
}

// NoteForeign remembers that a hand-off named a foreign host, and reports whether that is
// news in this life of the server.
func (l *live) NoteForeign(host string) bool {
	a := l.addresses
	a.mu.Lock()
	defer a.mu.Unlock()
	life := l.Life()
	maps.DeleteFunc(a.reported, func(_ string, in uint64) bool { return in != life })
	if _, old := a.reported[host]; old || len(a.reported) >= maxAsked {
		return false
	}
	a.reported[host] = life
	return true
}

// ask has a host looked up, if there are not too many.
func (a *addresses) ask(host string) {
	a.mu.Lock()
	_, old := a.asked[host]
	if !old && len(a.asked) >= maxAsked {
		a.makeRoom()
	}
	taken := old || len(a.asked) < maxAsked
	if taken {
		a.asked[host] = time.Now()
	}
	a.mu.Unlock()
	if old || !taken {
		return
	}
	select {
	case a.asks <- struct{}{}:
	default:
	}
}

// makeRoom forgets, of the hosts that were looked up and are not the server's, the one that
// was named longest ago: names that a server invents keep no true one out. mu is held.
func (a *addresses) makeRoom() {
	table := a.table()
	var oldest string
	for host, last := range a.asked {
		named, looked := table.asked[host]
		if looked && table.judge(named, true) != OwnHost && (oldest == "" || last.Before(a.asked[oldest])) {
			oldest = host
		}
	}
	delete(a.asked, oldest)
}

// table returns what is known, which is nothing before the first lookup.
func (a *addresses) table() *addressTable {
	if t := a.known.Load(); t != nil {
		return t
	}
	return new(addressTable)
}

// awaitFirst waits until the server's names were looked up once, for the time of one lookup
// at most.
func (a *addresses) awaitFirst(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	select {
	case <-a.first:
	case <-within.Done():
	}
}

// run looks up the server's hosts until the context ends: now, on a slow beat, and when a
// hand-off names a host that is not in the table.
func (a *addresses) run(ctx context.Context, spec Spec, lookup func(context.Context, string) []netip.Addr) {
	for {
		a.refresh(ctx, spec, lookup)
		beat := addressBeat
		if !a.table().complete() {
			beat = unresolvedBeat
		}
		if !Pause(ctx, askedPause) {
			return
		}
		next := time.NewTimer(beat)
		select {
		case <-ctx.Done():
		case <-a.asks:
		case <-next.C:
		}
		next.Stop()
	}
}

// refresh makes a new table. The hosts to look up are taken first, so that the server's own
// addresses in it are newer than the hand-off that named a host.
func (a *addresses) refresh(ctx context.Context, spec Spec, lookup func(context.Context, string) []netip.Addr) {
	a.mu.Lock()
	maps.DeleteFunc(a.asked, func(_ string, last time.Time) bool { return time.Since(last) > keepAsked })
	asked := slices.Collect(maps.Keys(a.asked))
	a.mu.Unlock()
	old := a.table()
	next := &addressTable{own: make(map[string][]netip.Addr), asked: make(map[string][]netip.Addr), literal: true}
	for _, host := range spec.kvHosts() {
		next.own[host] = resolveHost(ctx, host, old.own[host], lookup)
		_, literal := literalAddress(host)
		next.literal = next.literal && literal
	}
	for _, host := range asked {
		next.asked[host] = resolveHost(ctx, host, old.asked[host], lookup)
	}
	if ctx.Err() != nil {
		return
	}
	a.known.Store(next)
	select {
	case <-a.first:
	default:
		close(a.first)
	}
}

// resolveHost returns the addresses of a host, those that it had before while it cannot be
// resolved. A host that is this machine has all of this machine's.
func resolveHost(ctx context.Context, host string, before []netip.Addr, lookup func(context.Context, string) []netip.Addr) []netip.Addr {
	var found []netip.Addr
	if ip, ok := literalAddress(host); ok {
		found = []netip.Addr{ip}
	} else {
		for _, ip := range lookup(ctx, host) {
			found = append(found, plainAddress(ip))
		}
	}
	if len(found) == 0 {
		return before
	}
	if slices.Contains(found, loopback) {
		found = append(found, machineAddresses()...)
	}
	return found
}

// machineAddresses are those of this machine's interfaces.
func machineAddresses() []netip.Addr {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil // loopback alone is known then
	}
	var all []netip.Addr
	for _, a := range interfaces {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, plainAddress(prefix.Addr()))
		}
	}
	return all
}

// complete reports whether all of the server's hosts are resolved.
func (t *addressTable) complete() bool {
	for _, found := range t.own {
		if len(found) == 0 {
			return false
		}
	}
	return len(t.own) > 0
}

func (t *addressTable) has(ip netip.Addr) bool {
	for _, own := range t.own {
		if slices.Contains(own, ip) {
			return true
		}
	}
	return false
}

func (t *addressTable) all() []netip.Addr {
	return slices.Concat(slices.Collect(maps.Values(t.own))...)
}

// literalAddress returns the address that a host is, false if it is a name. localhost is
// one, on every machine.
func literalAddress(host string) (netip.Addr, bool) {
	if name := strings.TrimSuffix(strings.ToLower(host), "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return loopback, true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil {
		return netip.Addr{}, false
	}
	return plainAddress(ip), true
}

// plainAddress is the one form in which addresses are compared. What is not specified is
// the machine itself to those who connect to it.
func plainAddress(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return loopback
	}
	return ip
}

// sameName reports whether two hosts are the same by their spelling.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// lookupHost resolves a name, within bounds of time and of lookups at once. None: it
// cannot be resolved.
func (f *Fleet) lookupHost(ctx context.Context, host string) []netip.Addr {
	select {
	case f.lookups <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-f.lookups }()
	return lookupName(ctx, f.resolver, host)
}

func lookupName(ctx context.Context, resolver *net.Resolver, host string) []netip.Addr {
	within, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	found, err := resolver.LookupNetIP(within, "ip", host)
	if err != nil {
		return nil // what it was before stays
	}
	return found[:min(len(found), maxNamed)]
}

// ExpectedHosts describes where the hand-offs of a server may come from: its own host and
// that of its kv-address, each with its addresses.
func ExpectedHosts(ctx context.Context, spec Spec) string {
	var parts []string
	for _, host := range spec.kvHosts() {
		if _, literal := literalAddress(host); literal {
			parts = append(parts, host)
			continue
		}
		text := host + " (does not resolve)"
		if found := lookupName(ctx, net.DefaultResolver, host); len(found) > 0 {
			var addresses []string
			for _, ip := range found {
				addresses = append(addresses, ip.Unmap().String())
			}
			text = host + " (" + strings.Join(addresses, ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
