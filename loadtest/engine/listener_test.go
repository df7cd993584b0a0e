package engine

import (
	"net"
	"net/http"
	"testing"
)

// While a fault keeps an address closed, connections to it are refused, no one else gets its port,
// and it can be opened again.
func TestListener_ASuspendedAddressStaysItsOwn(t *testing.T) {
	l := newListener("127.0.0.1:0", http.NotFoundHandler())
	defer func() { _ = l.close() }()
	for range 3 {
		if err := l.open(); err != nil {
			t.Fatal(err)
		}
		l.suspend()
		if conn, err := net.Dial("tcp", l.addr); err == nil {
			_ = conn.Close()
			t.Error("a suspended listener takes connections")
		}
		var taken net.Conn
		dialer := net.Dialer{LocalAddr: mustAddr(t, l.addr)} // as an outgoing connection would get it
		target, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if taken, err = dialer.Dial("tcp", target.Addr().String()); err == nil {
			_ = taken.Close()
			t.Error("its port was given to a connection")
		}
		_ = target.Close()
	}
	if err := l.open(); err != nil {
		t.Error(err)
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
