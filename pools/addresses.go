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

// addresses are what is known of where a server is, to judge the hosts that its hand-offs
// name. They are looked up by run: requests never wait for a name.
type addresses struct {
	known atomic.Pointer[addressTable] // nil before the first lookup
	asks  chan struct{}                // a host is to be looked up that is not in the table

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
	return &addresses{asks: make(chan struct{}, 1), asked: make(map[string]time.Time), reported: make(map[string]uint64)}
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

// IsForeign reports whether a host that the server's hand-off names is certainly none of the
// server's: neither its own nor that of its kv-address. Loopback is the server's where the
// reader runs on the same machine. A host that is not known yet, or that cannot be resolved,
// is not foreign; it is looked up for the next hand-off.
func (s *Server) IsForeign(host string, reader *Server) bool {
	if host == "" || len(host) > maxHostName || slices.ContainsFunc(s.kvHosts(), func(own string) bool { return sameName(own, host) }) {
		return false
	}
	table := s.addresses.known.Load()
	if !table.complete() {
		return false
	}
	if ip, ok := literalAddress(host); ok && ip == loopback {
		theirs := reader.addresses.known.Load()
		return !table.has(ip) && theirs.complete() && !slices.ContainsFunc(theirs.all(), table.has)
	}
	named, looked := table.asked[host]
	if ip, ok := literalAddress(host); ok {
		named, looked = []netip.Addr{ip}, looked || table.literal
	}
	if slices.ContainsFunc(named, table.has) {
		return false
	}
	s.addresses.ask(host)
	return looked && len(named) > 0
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

// run looks up the server's hosts until the context ends: now, on a slow beat, and when a
// hand-off names a host that is not in the table.
func (a *addresses) run(ctx context.Context, spec Spec, lookup func(context.Context, string) []netip.Addr) {
	tick := time.NewTicker(addressBeat)
	defer tick.Stop()
	for {
		a.refresh(ctx, spec, lookup)
		select {
		case <-ctx.Done():
			return
		case <-a.asks:
		case <-tick.C:
		}
	}
}

// refresh makes a new table. The hosts to look up are taken first, so that the server's own
// addresses in it are newer than the hand-off that named a host.
func (a *addresses) refresh(ctx context.Context, spec Spec, lookup func(context.Context, string) []netip.Addr) {
	a.mu.Lock()
	maps.DeleteFunc(a.asked, func(_ string, last time.Time) bool { return time.Since(last) > keepAsked })
	asked := slices.Collect(maps.Keys(a.asked))
	a.mu.Unlock()
	old := a.known.Load()
	if old == nil {
		old = new(addressTable)
	}
	next := &addressTable{own: make(map[string][]netip.Addr), asked: make(map[string][]netip.Addr), literal: true}
	for _, host := range spec.kvHosts() {
		next.own[host] = resolveHost(ctx, host, old.own[host], lookup)
		_, literal := literalAddress(host)
		next.literal = next.literal && literal
	}
	for _, host := range asked {
		next.asked[host] = resolveHost(ctx, host, old.asked[host], lookup)
	}
	if ctx.Err() == nil {
		a.known.Store(next)
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
	if t == nil {
		return false
	}
	for _, found := range t.own {
		if len(found) == 0 {
			return false
		}
	}
	return true
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
