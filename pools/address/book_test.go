package address

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/nameserver"
)

// server is one whose hand-offs name hosts.
type server struct {
	*Book
	hosts []string
}

// watch returns servers at hosts, each with its first lookup behind it.
func watch(t *testing.T, names *nameserver.Server, hosts ...[]string) []server {
	t.Helper()
	resolver := NewResolver(names.Resolver())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	var all []server
	for _, own := range hosts {
		s := server{NewBook(), own}
		running.Go(func() { s.Run(t.Context(), own, resolver) })
		all = append(all, s)
	}
	for _, s := range all {
		await(t, "it is looked up", func() bool { return s.known.Load() != nil })
	}
	return all
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func (s server) judge(host string, reader server) Ownership {
	return s.Judge(host, s.hosts, reader.Book)
}

// whose is what a server says of a host once it has looked it up.
func whose(t *testing.T, s, reader server, host string) Ownership {
	t.Helper()
	s.judge(host, reader) // has it looked up
	await(t, host+" is looked up", func() bool { return s.table().knows(host) || !s.waits(host) })
	return s.judge(host, reader)
}

func (t *table) knows(host string) bool {
	_, looked := t.asked[host]
	return looked
}

// waits reports whether a host is to be looked up.
func (b *Book) waits(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, asked := b.asked[host]
	return asked
}

func TestBook_OnlyWhatIsKnownIsOwnOrForeign(t *testing.T) {
	names := nameserver.Start(t)
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1", "prefill.test. 0 IN A 192.0.2.2")
	names.Set("fabric.test.", "A", "fabric.test. 0 IN A 198.51.100.1")
	names.Set("alias.test.", "A", "alias.test. 0 IN A 192.0.2.2")
	names.Set("half.test.", "A", "half.test. 0 IN A 192.0.2.2", "half.test. 0 IN A 203.0.113.1")
	names.Set("decode.test.", "A", "decode.test. 0 IN A 192.0.2.9")
	servers := watch(t, names, []string{"prefill.test", "fabric.test"}, []string{"192.0.2.2"}, []string{"unknown.test"},
		[]string{"127.0.0.1"}, []string{"decode.test"}, []string{"2001:db8::1"})
	named, beside, lost, here, decode, six := servers[0], servers[1], servers[2], servers[3], servers[4], servers[5]
	for _, x := range []struct {
		name         string
		from, reader server
		host         string
		want         Ownership
	}{
		{"its own name", named, decode, "prefill.test", Own},
		{"its own name, spelled otherwise", named, decode, "PREFILL.test.", Own},
		{"an address of its name", named, decode, "192.0.2.2", Own},
		{"that address as IPv6 has it", named, decode, "::ffff:192.0.2.2", Own},
		{"its kv-address", named, decode, "198.51.100.1", Own},
		{"another name of it", named, decode, "alias.test", Own},
		{"another address", named, decode, "203.0.113.1", Foreign},
		{"another server's name", named, decode, "decode.test", Foreign},
		{"a name of which one address is another's", named, decode, "half.test", Unknown},
		{"a name that does not resolve", named, decode, "nowhere.test", Unknown},
		{"nothing", named, decode, "", Unknown},
		{"loopback, and decode is elsewhere", named, decode, "localhost", Foreign},
		{"loopback, and decode is on that machine", named, beside, "127.0.0.1", Own},
		{"loopback, and it is not known where decode is", named, lost, "localhost", Unknown},
		{"a server whose name does not resolve", lost, decode, "203.0.113.1", Unknown},
		{"the name of a server that does not resolve", lost, decode, "unknown.test", Own},
		{"this machine", here, decode, "localhost", Own},
		{"this machine, by IPv6", here, decode, "::1", Own},
		{"another one than this", here, decode, "203.0.113.1", Foreign},
		{"IPv6, written at length", six, decode, "2001:db8:0:0::1", Own},
		{"another IPv6", six, decode, "2001:db8::2", Foreign},
	} {
		if got := whose(t, x.from, x.reader, x.host); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	for _, ip := range machineAddresses() {
		if whose(t, here, decode, ip.String()) != Own {
			t.Errorf("%s is this machine", ip)
		}
	}
}

// A server by name that has moved names its new address before the name was looked up again.
func TestBook_AServerThatMovedIsLookedUpBeforeItIsForeign(t *testing.T) {
	names := nameserver.Start(t)
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	servers := watch(t, names, []string{"prefill.test"}, []string{"192.0.2.9"})
	s, reader := servers[0], servers[1]
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.5")
	if is := s.judge("192.0.2.5", reader); is != Unknown {
		t.Errorf("%v before its name was looked up again", is)
	}
	if is := whose(t, s, reader, "192.0.2.5"); is != Own {
		t.Errorf("its new address: %v", is)
	}
	if is := whose(t, s, reader, "192.0.2.1"); is != Foreign {
		t.Errorf("its old address: %v", is)
	}
}

func TestBook_WhatHandoffsNameIsBounded(t *testing.T) {
	names := nameserver.Start(t)
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	s := watch(t, names, []string{"prefill.test"})[0]
	reported := 0
	for i := range 100 {
		host := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}).String()
		s.judge(host, s)
		if s.RecordForeign(host, 1) {
			reported++
		}
		if s.RecordForeign(host, 1) {
			t.Fatalf("%s is reported twice", host)
		}
	}
	if !s.RecordForeign("203.0.113.1", 2) {
		t.Error("in its next incarnation it is no news")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.asked); n != maxAsked || reported != maxAsked {
		t.Errorf("%d are looked up, %d reported", n, reported)
	}
}

// An engine that gives each hand-off a new name gains nothing, and keeps out no true name.
func TestBook_AHostIsOwnOnlyOnceItWasLookedUp(t *testing.T) {
	names := nameserver.Start(t)
	names.Set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	names.Set("alias.test.", "A", "alias.test. 0 IN A 192.0.2.1")
	servers := watch(t, names, []string{"prefill.test"}, []string{"192.0.2.9"})
	s, reader := servers[0], servers[1]
	for i := range 3 * maxAsked {
		name := fmt.Sprintf("evil-%d.test", i)
		names.Set(name+".", "A", name+". 0 IN A 203.0.113.1")
		if is := s.judge(name, reader); is == Own {
			t.Fatalf("%s is the server's before it was looked up", name)
		}
	}
	await(t, "an invented name is looked up", func() bool { return s.judge("evil-0.test", reader) == Foreign })
	await(t, "a name beyond the first eight is looked up", func() bool { return s.judge("evil-23.test", reader) == Foreign })
	if is := s.judge("alias.test", reader); is != Unknown {
		t.Errorf("another name of the server: %v before it was looked up", is)
	}
	await(t, "it is looked up though eight are", func() bool { return s.judge("alias.test", reader) == Own })
	for i := range 3 * maxAsked {
		s.judge(fmt.Sprintf("worse-%d.test", i), reader)
	}
	await(t, "the others are looked up", func() bool { return s.table().knows("worse-0.test") })
	if is := s.judge("alias.test", reader); is != Own {
		t.Errorf("invented names took its place: %v", is)
	}
}

// A name that is longer than any can be is not looked up.
func TestBook_ANameThatIsTooLongIsNotLookedUp(t *testing.T) {
	b := NewBook()
	for length, asked := range map[int]bool{1: true, maxHostName: true, maxHostName + 1: false} {
		host := strings.Repeat("a", length)
		if is := b.Judge(host, []string{"prefill.test"}, NewBook()); is != Unknown || b.waits(host) != asked {
			t.Errorf("of %d bytes: %v, it is looked up %v", length, is, b.waits(host))
		}
	}
}

// Of the hosts that are not the server's the one that was named longest ago makes room; what
// was not looked up yet, and what is the server's, stays.
func TestBook_TheLongestUnnamedMakesRoom(t *testing.T) {
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")
	b := NewBook()
	known := &table{own: map[string][]netip.Addr{"prefill.test": {own}}, asked: make(map[string][]netip.Addr)}
	start := time.Now()
	for i := range maxAsked {
		host := fmt.Sprintf("h%d", i)
		b.asked[host] = start.Add(time.Duration((i+5)%maxAsked) * time.Second) // h3 is the oldest, then h4
		known.asked[host] = []netip.Addr{other}
	}
	known.asked["h3"] = []netip.Addr{own}
	delete(known.asked, "h4")
	b.known.Store(known)
	for i, gone := range []string{"h5", "h6"} {
		b.ask(fmt.Sprintf("new%d", i))
		if b.waits(gone) || !b.waits(fmt.Sprintf("new%d", i)) || len(b.asked) != maxAsked {
			t.Errorf("%s stays, or what was named is not asked for: %v", gone, b.asked)
		}
	}
	if !b.waits("h3") || !b.waits("h4") {
		t.Errorf("its own, or one that was not looked up, made room: %v", b.asked)
	}
}

// A host that no hand-off names any more is looked up for ten minutes.
func TestBook_WhatIsNamedNoMoreIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, names := NewBook(), NewResolver(nil) // addresses are not asked for
		b.ask("192.0.2.7")
		time.Sleep(time.Minute)
		b.ask("192.0.2.8")
		time.Sleep(keepAsked - time.Minute)
		b.refresh(t.Context(), []string{"192.0.2.1"}, names)
		if !b.waits("192.0.2.7") || !b.table().knows("192.0.2.7") {
			t.Error("it is forgotten too early")
		}
		time.Sleep(time.Nanosecond)
		b.refresh(t.Context(), []string{"192.0.2.1"}, names)
		if b.waits("192.0.2.7") || b.table().knows("192.0.2.7") || !b.waits("192.0.2.8") {
			t.Errorf("looked up are %v", b.asked)
		}
	})
}

// Nothing is known of a server before its names were looked up.
func TestTable_OfNothingIsNotComplete(t *testing.T) {
	if new(table).complete() || (&table{own: map[string][]netip.Addr{"a": nil}}).complete() {
		t.Error("nothing is all that there is to know")
	}
	if !(&table{own: map[string][]netip.Addr{"a": {loopback}}}).complete() {
		t.Error("all is known, and something is missing")
	}
}

// Loopback is all addresses of this machine.
func TestResolver_LoopbackIsThisMachine(t *testing.T) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	if found := NewResolver(nil).resolve(t.Context(), "localhost", nil); len(found) != 1+len(interfaces) {
		t.Errorf("%v, of interfaces %v", found, interfaces)
	}
}

func TestDescribe_AddressesAreNotLookedUp(t *testing.T) {
	if got := Describe(t.Context(), []string{"10.0.0.1", "localhost", "[2001:db8::1]"}); got != "10.0.0.1, localhost, [2001:db8::1]" {
		t.Error(got)
	}
}

// A caller that waits for the first lookup waits for the time of one at most.
func TestOf_AddressesAreOfOneForm(t *testing.T) {
	for host, want := range map[string][]netip.Addr{
		"localhost": {loopback}, "127.0.0.1": {loopback}, "::1": {loopback}, "[::ffff:10.0.0.7]": {netip.MustParseAddr("10.0.0.7")},
		"10.0.0.7": {netip.MustParseAddr("10.0.0.7")}, "nobody.invalid": nil,
	} {
		if got := Of(t.Context(), host); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}

func TestBook_AwaitFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBook()
		waits := func(ctx context.Context) time.Duration {
			start := time.Now()
			b.AwaitFirst(ctx)
			return time.Since(start)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if never, left := waits(t.Context()), waits(gone); never != lookupLimit || left != 0 {
			t.Errorf("before it: %v, and %v for one that has left", never, left)
		}
		for round := range 2 {
			b.refresh(t.Context(), []string{"192.0.2.1"}, NewResolver(nil))
			if took := waits(t.Context()); took != 0 {
				t.Errorf("after lookup %d: %v", round, took)
			}
		}
	})
}
