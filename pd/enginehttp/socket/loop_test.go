//go:build linux

package socket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bigRoom is room for all that a test sends at a time.
type bigRoom struct{ data [64]byte }

func (r *bigRoom) Take() []byte { return r.data[:] }
func (*bigRoom) Release()       {}

// take is a connection that a loop has, and its peer.
func take(t *testing.T, l *Loop) (*Taken, *net.TCPConn) {
	t.Helper()
	ours, peer := pair(t)
	taken := l.Take(Of(ours))
	if taken == nil {
		t.Fatal("it was not taken")
	}
	return taken, peer
}

// What comes is read in its order, again and again; the connection is given back where it was.
func TestLoop_ReadsWhatComes(t *testing.T) {
	var l Loop
	taken, peer := take(t, &l)
	var room bigRoom
	for round := range 3 {
		var got []string
		write(t, peer, []byte("piece 0"))
		if err := taken.Follow(&room, func(n int, err error) bool {
			if err != nil {
				t.Error(err)
			}
			if got = append(got, string(room.data[:n])); len(got) < 3 {
				write(t, peer, fmt.Appendf(nil, "piece %d", len(got)))
			}
			return len(got) < 3
		}); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(got, ", "); text != "piece 0, piece 1, piece 2" {
			t.Fatalf("round %d: %s", round, text)
		}
		conn, err := taken.GiveBack()
		if err != nil {
			t.Fatal(err)
		}
		write(t, peer, []byte("by itself"))
		if n, err := conn.Read(room.data[:]); err != nil || string(room.data[:n]) != "by itself" {
			t.Errorf("%d bytes, %v", n, err)
		}
		if _, err := conn.Write([]byte("ours")); err != nil {
			t.Error(err)
		}
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		if _, err := conn.Read(room.data[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it has no deadline: %v", err)
		}
		_ = conn.SetReadDeadline(time.Time{})
		if taken = l.Take(conn); taken == nil {
			t.Fatal("it was not taken again")
		}
	}
	if err := taken.Close(); err != nil {
		t.Error(err)
	}
	rest, err := io.ReadAll(peer)
	if string(rest) != "oursoursours" || err != nil {
		t.Errorf("the peer got %q, %v", rest, err)
	}
}

// How a connection ends is said as package net says it.
func TestLoop_SaysHowAConnectionEnds(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(taken *Taken, peer *net.TCPConn)
		want error
	}{
		"the peer ends":        {func(_ *Taken, peer *net.TCPConn) { _ = peer.CloseWrite() }, io.EOF},
		"the peer resets":      {func(_ *Taken, peer *net.TCPConn) { _ = errors.Join(peer.SetLinger(0), peer.Close()) }, syscall.ECONNRESET},
		"another ends it here": {func(taken *Taken, _ *net.TCPConn) { taken.Shutdown() }, io.EOF},
	} {
		var l Loop
		taken, peer := take(t, &l)
		write(t, peer, []byte("first"))
		var failed error
		if err := taken.Follow(new(bigRoom), func(_ int, err error) bool {
			if err == nil {
				go c.do(taken, peer)
			}
			failed = err
			return err == nil
		}); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(failed, c.want) {
			t.Errorf("%s: %v", name, failed)
		}
		if err := taken.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		taken.Shutdown() // may come late
		if _, err := taken.GiveBack(); !errors.Is(err, net.ErrClosed) || taken.Close() == nil {
			t.Errorf("%s: it is not closed: %v", name, err)
		}
	}
}

// A panic is that of who waits, and ends nobody else's.
func TestLoop_PanicsWhereItIsWaitedFor(t *testing.T) {
	var l Loop
	taken, peer := take(t, &l)
	other, otherPeer := take(t, &l)
	heard := make(chan string)
	go func() {
		var room bigRoom
		_ = other.Follow(&room, func(n int, _ error) bool {
			heard <- string(room.data[:n])
			return n > 0
		})
	}()
	write(t, peer, []byte("one"))
	func() {
		defer func() {
			if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "of one stream\n") || !strings.Contains(text, "loop_test.go") {
				t.Errorf("panic: %s", text)
			}
		}()
		_ = taken.Follow(new(bigRoom), func(int, error) bool { panic("of one stream") })
	}()
	write(t, otherPeer, []byte("goes on"))
	if text := <-heard; text != "goes on" {
		t.Error(text)
	}
	_ = otherPeer.Close()
	<-heard
}

// One that is no TCP connection, or is closed, is not taken.
func TestLoop_TakesTCPAlone(t *testing.T) {
	var l Loop
	piped, _ := net.Pipe()
	closed, _ := pair(t)
	_ = closed.Close()
	if l.Take(piped) != nil || l.Take(closed) != nil || SendNow(piped, []byte("p")) != 0 || SendNow(Of(closed), []byte("p")) != 0 {
		t.Error("it was taken, or written to")
	}
}

// What the socket takes is written at once, and no more is waited for.
func TestSendNow_WritesWhatTheSocketTakes(t *testing.T) {
	ours, peer := pair(t)
	conn, all := Of(ours), bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	sent := 0
	for n := -1; n != 0; sent += n {
		n = SendNow(conn, all[sent:])
	}
	if sent == 0 || sent == len(all) {
		t.Fatalf("%d bytes are written of %d that nobody reads", sent, len(all))
	}
	_ = ours.CloseWrite()
	got, err := io.ReadAll(peer)
	if err != nil || !bytes.Equal(got, all[:sent]) {
		t.Errorf("%d bytes came of %d, %v", len(got), sent, err)
	}
}

// Many connections at once, taken and given back at any time, lose and mix nothing; when none is followed neither
// goroutine nor descriptor is left.
func TestLoop_ManyConnections(t *testing.T) {
	var l Loop
	before := descriptors(t)
	var all sync.WaitGroup
	for i := range 40 {
		ours, peer := pair(t)
		all.Go(func() {
			for j := range 400 {
				write(t, peer, fmt.Appendf(nil, "%d.%d ", i, j))
			}
			_ = peer.CloseWrite()
		})
		all.Go(func() {
			var want, got strings.Builder
			for j := range 400 {
				fmt.Fprintf(&want, "%d.%d ", i, j)
			}
			readByTurns(t, &l, Of(ours), &got)
			if got.String() != want.String() {
				t.Errorf("%d: %d bytes, want %d: %.80q", i, got.Len(), want.Len(), got.String())
			}
			_ = peer.Close()
		})
	}
	all.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for descriptors(t) > before {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", descriptors(t), before)
		}
		time.Sleep(time.Millisecond)
	}
}

// readByTurns reads all of a connection, a loop and the goroutine by turns, and closes it.
func readByTurns(t *testing.T, l *Loop, conn net.Conn, into io.Writer) {
	var room bigRoom
	for {
		taken := l.Take(conn)
		if taken == nil {
			t.Error("it was not taken")
			return
		}
		left, ended := 1+rand.IntN(30), false
		if err := taken.Follow(&room, func(n int, err error) bool {
			_, _ = into.Write(room.data[:n])
			left--
			ended = err != nil
			return !ended && left > 0
		}); err != nil {
			t.Error(err)
		}
		if ended {
			_ = taken.Close()
			return
		}
		var err error
		if conn, err = taken.GiveBack(); err != nil {
			t.Error(err)
			return
		}
		n, err := conn.Read(room.data[:])
		if _, _ = into.Write(room.data[:n]); err != nil {
			_ = conn.Close()
			return
		}
	}
}

// descriptors is how many of them the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// Where no descriptor is left a connection is neither taken nor given back, and is read as it is.
func TestLoop_WithoutDescriptors(t *testing.T) {
	var l Loop
	taken, peer := take(t, &l)
	ours, _ := pair(t)
	write(t, peer, []byte("first"))
	p := make([]byte, 64)
	if n, err := taken.Read(p); err != nil || string(p[:n]) != "first" {
		t.Fatalf("%d bytes, %v", n, err)
	}
	useUp(t, func() {
		if l.Take(Of(ours)) != nil {
			t.Error("it was taken")
		}
		if conn, err := taken.GiveBack(); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%v, %v", conn, err)
		}
		write(t, peer, []byte("still"))
		if n, err := taken.Read(p); err != nil || string(p[:n]) != "still" {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
	_ = peer.CloseWrite()
	if n, err := taken.Read(p); n != 0 || err != io.EOF { //nolint:errorlint // as readers compare it
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := taken.Close(); err != nil {
		t.Error(err)
	}
}

// useUp leaves no descriptor while do runs.
func useUp(t *testing.T, do func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 3, Max: limit.Max} // those of the program are open
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	do()
}
