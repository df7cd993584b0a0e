//go:build !race && linux && (amd64 || arm64)

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// countedRoom is room that says when it is taken and released.
type countedRoom struct {
	data     [16]byte
	taken    bool
	released chan struct{}
}

func (r *countedRoom) Take() []byte { r.taken = true; return r.data[:] }

func (r *countedRoom) Release() {
	r.taken = false
	select {
	case r.released <- struct{}{}:
	default:
	}
}

// Who waits holds no room; it is taken for what comes, and for an end or an error.
func TestReadLate_HoldsNoRoomWhileItWaits(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, ours net.Conn, peer *net.TCPConn)
		want string
		err  error
	}{
		"something comes":         {func(t *testing.T, _ net.Conn, peer *net.TCPConn) { write(t, peer, []byte("hello")) }, "hello", nil},
		"the peer ends":           {func(_ *testing.T, _ net.Conn, peer *net.TCPConn) { _ = peer.CloseWrite() }, "", io.EOF},
		"the time is over":        {func(_ *testing.T, ours net.Conn, _ *net.TCPConn) { _ = ours.SetReadDeadline(time.Unix(1, 0)) }, "", os.ErrDeadlineExceeded},
		"it is closed by us":      {func(_ *testing.T, ours net.Conn, _ *net.TCPConn) { _ = ours.Close() }, "", net.ErrClosed},
		"more than there is room": {func(t *testing.T, _ net.Conn, peer *net.TCPConn) { write(t, peer, []byte("0123456789abcdefghi")) }, "0123456789abcdef", nil},
	} {
		tcp, peer := pair(t)
		ours, room := Of(tcp), &countedRoom{released: make(chan struct{}, 1)}
		type result struct {
			n   int
			err error
		}
		read := make(chan result)
		go func() {
			n, err := ReadLate(ours, room)
			read <- result{n, err}
		}()
		<-room.released
		if room.taken {
			t.Errorf("%s: it waits with room", name)
		}
		c.do(t, ours, peer)
		got := <-read
		if text := string(room.data[:got.n]); text != c.want || !errors.Is(got.err, c.err) {
			t.Errorf("%s: %q, %v", name, text, got.err)
		}
	}
}

// What is there already is read at once, and later reads are those of any connection.
func TestReadLate_ReadsOn(t *testing.T) {
	tcp, peer := pair(t)
	ours := Of(tcp)
	for range 3 {
		write(t, peer, []byte("abcdef"))
		room := &countedRoom{released: make(chan struct{}, 1)}
		if n, err := ReadLate(ours, room); err != nil || string(room.data[:n]) != "abcdef" {
			t.Errorf("%d bytes, %v", n, err)
		}
		write(t, peer, []byte("gh"))
		p := make([]byte, 2)
		if _, err := io.ReadFull(ours, p); err != nil || string(p) != "gh" {
			t.Errorf("%q, %v", p, err)
		}
	}
}

// Another connection than TCP is read as ever.
func TestReadLate_OfAPipe(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() { _, _ = theirs.Write([]byte("hi")) }()
	room := &countedRoom{released: make(chan struct{}, 1)}
	if n, err := ReadLate(Of(ours), room); err != nil || string(room.data[:n]) != "hi" {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Pieces that follow each other are acknowledged two at a time. The peer counts the packets that come back.
func TestDelayAcks_HalvesThem(t *testing.T) {
	const pieces = 200
	acks := func(delayed bool) uint32 {
		tcp, peer := pair(t)
		ours, room := Of(tcp), &countedRoom{released: make(chan struct{}, 1)}
		if delayed {
			DelayAcks(ours)
		}
		before := packetsIn(t, peer)
		for range pieces {
			write(t, peer, []byte("piece"))
			if n, err := ReadLate(ours, room); n != 5 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		return packetsIn(t, peer) - before
	}
	if each := acks(false); each < pieces/2 {
		t.Errorf("%d acknowledgements of %d pieces without: the kernel does not need it any more", each, pieces)
	}
	fewest := uint32(pieces)
	for range 20 { // a machine that stands still for 40 ms has them at once again
		if fewest = min(fewest, acks(true)); fewest <= pieces*6/10 {
			return
		}
	}
	t.Errorf("%d acknowledgements of %d pieces", fewest, pieces)
}

// packetsIn is how many packets a socket has received.
func packetsIn(t *testing.T, c *net.TCPConn) (n uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		info, failed := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if failed != nil {
			t.Error(failed)
			return
		}
		n = info.Segs_in
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
