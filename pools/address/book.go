package address

import (
	"context"
	"maps"
	"net/netip"
	"slices"
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
)

// Book is what is known of where one server is, to judge the hosts that its hand-offs name.
// They are looked up by Run: requests never wait for a name.
type Book struct {
	known atomic.Pointer[table] // nil before the first lookup
	asks  chan struct{}         // a host is to be looked up that is not in the table
	first chan struct{}         // closed when the server's names were looked up once

	mu       sync.Mutex           // guards asked and reported
	asked    map[string]time.Time // by host: when a hand-off named it last
	reported map[string]uint64    // foreign hosts, by the incarnation of the server that named them
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{asks: make(chan struct{}, 1), first: make(chan struct{}), asked: make(map[string]time.Time), reported: make(map[string]uint64)}
}

// Judge returns the ownership of a host that a hand-off of the server names, which may be
// reached at own: the server's, if it is one of those by name, or by all of its addresses.
// Loopback is the server's where the reader runs on the same machine. An unknown host is looked
// up for the next hand-off.
func (b *Book) Judge(host string, own []string, reader *Book) Ownership {
	if slices.ContainsFunc(own, func(own string) bool { return sameName(own, host) }) {
		return Own
	}
	if host == "" || len(host) > maxHostName {
		return Unknown
	}
	table := b.table()
	ip, literal := literalAddress(host)
	if literal && ip == loopback {
		return table.judgeLoopback(reader.table())
	}
	named, looked := table.asked[host]
	if literal {
		named, looked = []netip.Addr{ip}, looked || table.literal
	}
	is := table.judge(named, looked)
	if !literal || is != Own && !table.literal {
		b.ask(host)
	}
	return is
}

// RecordForeign remembers that a hand-off named a foreign host, and reports whether that is
// new in this incarnation of the server.
func (b *Book) RecordForeign(host string, incarnation uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.reported, func(_ string, in uint64) bool { return in != incarnation })
	if _, old := b.reported[host]; old || len(b.reported) >= maxAsked {
		return false
	}
	b.reported[host] = incarnation
	return true
}

// ask has a host looked up, if there are not too many.
func (b *Book) ask(host string) {
	b.mu.Lock()
	_, old := b.asked[host]
	if !old && len(b.asked) >= maxAsked {
		b.makeRoomLocked()
	}
	taken := old || len(b.asked) < maxAsked
	if taken {
		b.asked[host] = time.Now()
	}
	b.mu.Unlock()
	if old || !taken {
		return
	}
	select {
	case b.asks <- struct{}{}:
	default:
	}
}

// makeRoomLocked forgets, of the hosts that were looked up and are not the server's, the one that
// was named longest ago: names that a server invents keep no true one out.
func (b *Book) makeRoomLocked() {
	table := b.table()
	var oldest string
	for host, last := range b.asked {
		named, looked := table.asked[host]
		if looked && table.judge(named, true) != Own && (oldest == "" || last.Before(b.asked[oldest])) {
			oldest = host
		}
	}
	delete(b.asked, oldest)
}

// table returns what is known, which is nothing before the first lookup.
func (b *Book) table() *table {
	if t := b.known.Load(); t != nil {
		return t
	}
	return new(table)
}

// AwaitFirst waits until the server's names were looked up once, for the time of one lookup
// at most.
func (b *Book) AwaitFirst(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	select {
	case <-b.first:
	case <-within.Done():
	}
}

// Run looks up the server's hosts until the context ends: now, on a slow beat, and when a
// hand-off names a host that is not in the table.
func (b *Book) Run(ctx context.Context, hosts []string, names *Resolver) {
	for {
		b.refresh(ctx, hosts, names)
		beat := addressBeat
		if !b.table().complete() {
			beat = unresolvedBeat
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(askedPause):
		}
		next := time.NewTimer(beat)
		select {
		case <-ctx.Done():
		case <-b.asks:
		case <-next.C:
		}
		next.Stop()
	}
}

// refresh makes a new table. The hosts to look up are taken first, so that the server's own
// addresses in it are newer than the hand-off that named a host.
func (b *Book) refresh(ctx context.Context, hosts []string, names *Resolver) {
	b.mu.Lock()
	maps.DeleteFunc(b.asked, func(_ string, last time.Time) bool { return time.Since(last) > keepAsked })
	asked := slices.Collect(maps.Keys(b.asked))
	b.mu.Unlock()
	old := b.table()
	next := &table{own: make(map[string][]netip.Addr), asked: make(map[string][]netip.Addr), literal: true}
	for _, host := range hosts {
		next.own[host] = names.resolve(ctx, host, old.own[host])
		_, literal := literalAddress(host)
		next.literal = next.literal && literal
	}
	for _, host := range asked {
		next.asked[host] = names.resolve(ctx, host, old.asked[host])
	}
	if ctx.Err() != nil {
		return
	}
	b.known.Store(next)
	select {
	case <-b.first:
	default:
		close(b.first)
	}
}
