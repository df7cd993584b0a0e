package pools

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"
)

// whose is what a server says of a host once it has looked it up.
func whose(t *testing.T, s, reader *Server, host string) bool {
	t.Helper()
	s.IsForeign(host, reader) // has it looked up
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if s.addresses.known.Load().knows(host) || !s.addresses.waits(host) {
			return s.IsForeign(host, reader)
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s is not looked up", host)
	return false
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

func TestAddresses_OnlyAHostThatIsCertainlyAnothersIsForeign(t *testing.T) {
	names := newNameServer(t)
	names.set("prefill.test.", "A", "prefill.test. 0 IN A 192.0.2.1", "prefill.test. 0 IN A 192.0.2.2")
	names.set("fabric.test.", "A", "fabric.test. 0 IN A 198.51.100.1")
	names.set("alias.test.", "A", "alias.test. 0 IN A 192.0.2.2")
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
		foreign      bool
	}{
		{"its own name", named, decode, "prefill.test", false},
		{"its own name, spelled otherwise", named, decode, "PREFILL.test.", false},
		{"an address of its name", named, decode, "192.0.2.2", false},
		{"that address as IPv6 has it", named, decode, "::ffff:192.0.2.2", false},
		{"its kv-address", named, decode, "198.51.100.1", false},
		{"another name of it", named, decode, "alias.test", false},
		{"another address", named, decode, "203.0.113.1", true},
		{"another server's name", named, decode, "decode.test", true},
		{"a name that does not resolve", named, decode, "nowhere.test", false},
		{"nothing", named, decode, "", false},
		{"loopback, and decode is elsewhere", named, decode, "localhost", true},
		{"loopback, and decode is on that machine", named, beside, "127.0.0.1", false},
		{"loopback, and nobody knows where decode is", named, lost, "localhost", false},
		{"a server whose name does not resolve", lost, decode, "203.0.113.1", false},
		{"this machine", here, decode, "localhost", false},
		{"this machine, by IPv6", here, decode, "::1", false},
		{"another one than this", here, decode, "203.0.113.1", true},
		{"IPv6, written at length", six, decode, "2001:db8:0:0::1", false},
		{"another IPv6", six, decode, "2001:db8::2", true},
	} {
		if got := whose(t, x.from, x.reader, x.host); got != x.foreign {
			t.Errorf("%s: foreign: %v", x.name, got)
		}
	}
	for _, ip := range machineAddresses() {
		if whose(t, here, decode, ip.String()) {
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
	if s.IsForeign("192.0.2.5", reader) {
		t.Error("foreign before its name was looked up again")
	}
	if whose(t, s, reader, "192.0.2.5") {
		t.Error("its new address is foreign")
	}
	if !whose(t, s, reader, "192.0.2.1") {
		t.Error("its old address is not foreign")
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
		s.IsForeign(host, s)
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
