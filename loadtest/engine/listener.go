package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
)

// listener serves one address by HTTP. A fault can suspend it and open it again: while it
// is suspended connections are refused, as a dead process does.
type listener struct {
	server *http.Server
	addr   string // with the port in use, once it was open
	bound  bool   // it was open
	serves sync.WaitGroup

	mu   sync.Mutex
	ln   net.Listener // nil: closed
	idle map[net.Conn]bool
	shut bool // for good
	kept int  // socket that keeps the address while suspended; 0: none
}

// newListener makes a listener that is not open yet.
func newListener(address string, handler http.Handler) *listener {
	l := &listener{addr: address, idle: map[net.Conn]bool{}}
	l.server = &http.Server{Handler: handler, ConnState: l.track, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	return l
}

// open listens on the address; it does nothing on a listener that is open.
func (l *listener) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil || l.shut {
		return nil
	}
	ln, err := net.Listen("tcp", l.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.addr, err)
	}
	l.ln = ln
	l.letGoLocked()
	if !l.bound {
		l.addr, l.bound = ln.Addr().String(), true
	}
	l.serves.Go(func() {
		// It ends with the listener; what else it can say was logged by the server.
		if err := l.server.Serve(ln); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			slog.Error("engine stopped accepting", "addr", ln.Addr().String(), "error", err)
		}
	})
	return nil
}

// suspend refuses connections from now on, and closes the idle ones.
func (l *listener) suspend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln == nil {
		return
	}
	_ = l.ln.Close() // no longer wanted, whatever it says
	l.ln = nil
	l.keepLocked()
	for conn := range l.idle {
		_ = conn.Close()
	}
}

// keepLocked binds the address without listening on it: connections are refused, and no other
// program gets the port before the listener is open again. Where that is not possible, one may.
func (l *listener) keepLocked() {
	at, err := netip.ParseAddrPort(l.addr)
	if err != nil || at.Addr().Zone() != "" {
		return
	}
	family, address := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, address = syscall.AF_INET, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) != nil || syscall.Bind(fd, address) != nil {
		_ = syscall.Close(fd)
		return
	}
	l.kept = fd
}

func (l *listener) letGoLocked() {
	if l.kept != 0 {
		_ = syscall.Close(l.kept)
		l.kept = 0
	}
}

// suspended reports whether a fault has suspended it.
func (l *listener) suspended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ln == nil && !l.shut
}

// track remembers which connections are between requests.
func (l *listener) track(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == http.StateNew || state == http.StateIdle {
		if l.ln == nil {
			_ = conn.Close()
			return
		}
		l.idle[conn] = true
		return
	}
	delete(l.idle, conn)
}

// close cuts all connections and waits for the accept loop.
func (l *listener) close() error {
	l.mu.Lock()
	l.shut = true
	l.ln = nil
	l.letGoLocked()
	l.mu.Unlock()
	err := l.server.Close()
	l.serves.Wait()
	return err
}
