package pools

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// whose is what a server says of a host once it has looked it up.
func whose(t *testing.T, s, reader *Server, host string) Ownership {
	t.Helper()
	s.JudgeHost(host, reader) // has it looked up
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if s.addresses.known.Load().knows(host) || !s.addresses.waits(host) {
			return s.JudgeHost(host, reader)
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s is not looked up", host)
	return UnknownHost
}

func (t *addressTable) knows(host string) bool {
	_, looked := t.asked[host]
	return looked
}

// waits reports whether a host is to be looked up.
func (a *addresses) waits(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, asked := a.asked[host]
	return asked
}

func newNamedFleet(t *testing.T, names *nameServer, specs ...Spec) *Fleet {
	t.Helper()
	f := newTestFleet(t)
	f.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, names.addr)
	}}
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Servers() {
		for deadline := time.Now().Add(10 * time.Second); s.addresses.known.Load() == nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s was not looked up", s.ID())
			}
		}
	}
	return f
}

func TestAddresses_OnlyWhatIsKnownIsOwnOrForeign(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1", "prefill.test. 0 IN A 192.0.2.2")
	names.set("fabric.test.", "A", "fabric.test. 0 IN A 198.51.100.1")
	names.set("alias.test.", "A", "alias.test. 0 IN A 192.0.2.2")
	names.set("half.test.", "A", "half.test. 0 IN A 192.0.2.2", "half.test. 0 IN A 203.0.113.1")
	names.set("decode.test.", "A", "decode.test. 0 IN A 192.0.2.9")
	onTwo := spec("http://prefill.test:1", Prefill)
	onTwo.KVAddress = "fabric.test:7777"
	unknown := spec("http://unknown.test:1", Prefill)
	f := newNamedFleet(t, names, onTwo, spec("http://192.0.2.2:1", Decode), unknown, spec("http://127.0.0.1:1", Prefill),
		spec("http://decode.test:1", Decode), spec("http://[2001:db8::1]:1", Prefill))
	named, beside, lost, here, decode, six := f.Servers()[0], f.Servers()[1], f.Servers()[2], f.Servers()[3], f.Servers()[4], f.Servers()[5]
	for _, x := range []struct {
		name         string
		from, reader *Server
		host         string
		want         Ownership
	}{
		{"its own name", named, decode, "prefill.test", OwnHost},
		{"its own name, spelled otherwise", named, decode, "PREFILL.test.", OwnHost},
		{"an address of its name", named, decode, "192.0.2.2", OwnHost},
		{"that address as IPv6 has it", named, decode, "::ffff:192.0.2.2", OwnHost},
		{"its kv-address", named, decode, "198.51.100.1", OwnHost},
		{"another name of it", named, decode, "alias.test", OwnHost},
		{"another address", named, decode, "203.0.113.1", ForeignHost},
		{"another server's name", named, decode, "decode.test", ForeignHost},
		{"a name of which one address is another's", named, decode, "half.test", UnknownHost},
		{"a name that does not resolve", named, decode, "nowhere.test", UnknownHost},
		{"nothing", named, decode, "", UnknownHost},
		{"loopback, and decode is elsewhere", named, decode, "localhost", ForeignHost},
		{"loopback, and decode is on that machine", named, beside, "127.0.0.1", OwnHost},
		{"loopback, and nobody knows where decode is", named, lost, "localhost", UnknownHost},
		{"a server whose name does not resolve", lost, decode, "203.0.113.1", UnknownHost},
		{"the name of a server that does not resolve", lost, decode, "unknown.test", OwnHost},
		{"this machine", here, decode, "localhost", OwnHost},
		{"this machine, by IPv6", here, decode, "::1", OwnHost},
		{"another one than this", here, decode, "203.0.113.1", ForeignHost},
		{"IPv6, written at length", six, decode, "2001:db8:0:0::1", OwnHost},
		{"another IPv6", six, decode, "2001:db8::2", ForeignHost},
	} {
		if got := whose(t, x.from, x.reader, x.host); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	for _, ip := range machineAddresses() {
		if whose(t, here, decode, ip.String()) != OwnHost {
			t.Errorf("%s is this machine", ip)
		}
	}
}

// A server by name that has moved names its new address before the name was looked up again.
func TestAddresses_AServerThatMovedIsLookedUpBeforeItIsForeign(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	f := newNamedFleet(t, names, spec("http://prefill.test:1", Prefill), spec("http://192.0.2.9:1", Decode))
	s, reader := f.Servers()[0], f.Servers()[1]
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.5")
	if is := s.JudgeHost("192.0.2.5", reader); is != UnknownHost {
		t.Errorf("%v before its name was looked up again", is)
	}
	if is := whose(t, s, reader, "192.0.2.5"); is != OwnHost {
		t.Errorf("its new address: %v", is)
	}
	if is := whose(t, s, reader, "192.0.2.1"); is != ForeignHost {
		t.Errorf("its old address: %v", is)
	}
}

func TestAddresses_WhatHandoffsNameIsBounded(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	f := newNamedFleet(t, names, spec("http://prefill.test:1", Prefill))
	s := f.Servers()[0]
	reported := 0
	for i := range 100 {
		host := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}).String()
		s.JudgeHost(host, s)
		if s.NoteForeign(host) {
			reported++
		}
		if s.NoteForeign(host) {
			t.Fatalf("%s is reported twice", host)
		}
	}
	s.addresses.mu.Lock()
	defer s.addresses.mu.Unlock()
	if n := len(s.addresses.asked); n != maxAsked || reported != maxAsked {
		t.Errorf("%d are looked up, %d reported", n, reported)
	}
}

// An engine that gives each hand-off a new name gains nothing, and keeps out no true name.
func TestAddresses_AHostIsOwnOnlyOnceItWasLookedUp(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	names.set("alias.test.", "A", "alias.test. 0 IN A 192.0.2.1")
	f := newNamedFleet(t, names, spec("http://prefill.test:1", Prefill), spec("http://192.0.2.9:1", Decode))
	s, reader := f.Servers()[0], f.Servers()[1]
	for i := range 3 * maxAsked {
		name := fmt.Sprintf("evil-%d.test", i)
		names.set(name+".", "A", name+". 0 IN A 203.0.113.1")
		if is := s.JudgeHost(name, reader); is == OwnHost {
			t.Fatalf("%s is the server's before it was looked up", name)
		}
	}
	eventually(t, "an invented name is looked up", func() bool { return s.JudgeHost("evil-0.test", reader) == ForeignHost })
	eventually(t, "a name beyond the first eight is looked up", func() bool { return s.JudgeHost("evil-23.test", reader) == ForeignHost })
	if is := s.JudgeHost("alias.test", reader); is != UnknownHost {
		t.Errorf("another name of the server: %v before it was looked up", is)
	}
	eventually(t, "it is looked up though eight are", func() bool { return s.JudgeHost("alias.test", reader) == OwnHost })
	for i := range 3 * maxAsked {
		s.JudgeHost(fmt.Sprintf("worse-%d.test", i), reader)
	}
	eventually(t, "the others are looked up", func() bool { return s.addresses.table().knows("worse-0.test") })
	if is := s.JudgeHost("alias.test", reader); is != OwnHost {
		t.Errorf("invented names took its place: %v", is)
	}
}

// A hand-off of a server that has just joined is not withheld because nobody has looked yet.
func TestAddresses_AServerJoinsOnceItsNamesWereLookedUp(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1")
	var probed, early atomic.Bool
	cfg := Default()
	cfg.AwaitAddresses = true
	f := NewFleet(cfg, slog.New(slog.DiscardHandler))
	f.Watch(func() func(context.Context, *Server) {
		return func(ctx context.Context, s *Server) {
			s.AwaitAddresses(ctx)
			probed.Store(true)
		}
	})
	t.Cleanup(f.Close)
	f.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		time.Sleep(50 * time.Millisecond) // a probe that does not wait is faster
		if probed.Load() {
			early.Store(true)
		}
		return new(net.Dialer).DialContext(ctx, network, names.addr)
	}}
	if err := f.Apply([]Spec{spec("http://prefill.test:1", Prefill)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is probed", probed.Load)
	if table := f.Servers()[0].addresses.table(); early.Load() || !table.complete() {
		t.Error("it was probed before its names were looked up")
	}
}
