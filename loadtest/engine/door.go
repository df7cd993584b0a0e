package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// door is the API's listener, which a fault can close and open again: a closed door
// refuses connections as a dead process does.
type door struct {
	server *http.Server
	addr   string // with the port in use, once it was open
	bound  bool   // it was open
	serves sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil: closed
	idle     map[net.Conn]bool
	shut     bool // for good
}

// newDoor makes a door that is still closed.
func newDoor(address string, handler http.Handler) *door {
	d := &door{addr: address, idle: map[net.Conn]bool{}}
	d.server = &http.Server{Handler: handler, ConnState: d.track, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	return d
}

// open listens on the door's address; it does nothing when the door is open.
func (d *door) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil || d.shut {
		return nil
	}
	listener, err := net.Listen("tcp", d.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", d.addr, err)
	}
	d.listener = listener
	if !d.bound {
		d.addr, d.bound = listener.Addr().String(), true
	}
	d.serves.Go(func() {
		// It ends with the listener; what else it can say was logged by the server.
		if err := d.server.Serve(listener); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			slog.Error("engine stopped accepting", "addr", listener.Addr().String(), "error", err)
		}
	})
	return nil
}

// refuse closes the listener and the idle connections.
func (d *door) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return
	}
	_ = d.listener.Close() // no longer wanted, whatever it says
	d.listener = nil
	for conn := range d.idle {
		_ = conn.Close()
	}
}

// refusing says whether the door is closed by a fault.
func (d *door) refusing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener == nil && !d.shut
}

// track remembers which connections are between requests.
func (d *door) track(conn net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state == http.StateNew || state == http.StateIdle {
		if d.listener == nil {
			_ = conn.Close()
			return
		}
		d.idle[conn] = true
		return
	}
	delete(d.idle, conn)
}

// close cuts all connections and waits for the accept loop.
func (d *door) close() error {
	d.mu.Lock()
	d.shut = true
	d.listener = nil
	d.mu.Unlock()
	err := d.server.Close()
	d.serves.Wait()
	return err
}
