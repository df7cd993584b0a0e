package engine

import (
	"net"
	"net/http"
	"testing"
)

// While a fault keeps an address closed, connections to it are refused, no one else gets its port,
// and it can be opened again.
func TestListener_ASuspendedAddressStaysItsOwn(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			l := newListener(address, http.NotFoundHandler())
			defer func() { _ = l.close() }()
			for range 3 {
				if err := l.open(); err != nil {
					if address != "127.0.0.1:0" {
						t.Skip(err) // there is no IPv6 here
					}
					t.Fatal(err)
				}
				l.suspend()
				if conn, err := net.Dial("tcp", l.addr); err == nil {
					_ = conn.Close()
					t.Error("a suspended listener takes connections")
				}
				connectFrom(t, l.addr, address)
			}
			if err := l.open(); err != nil {
				t.Error(err)
			}
		})
	}
}

// connectFrom fails the test if a connection gets an address as its own.
func connectFrom(t *testing.T, own, to string) {
	t.Helper()
	target, err := net.Listen("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Close() }()
	dialer := net.Dialer{LocalAddr: mustAddr(t, own)}
	if taken, err := dialer.Dial("tcp", target.Addr().String()); err == nil {
		_ = taken.Close()
		t.Error("its port was given to a connection")
	}
}

func mustAddr(t *testing.T, address string) *net.TCPAddr {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
