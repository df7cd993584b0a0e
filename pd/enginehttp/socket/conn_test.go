package socket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair is both ends of a connection.
func pair(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	made, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = made.(*net.TCPConn), accepted.(*net.TCPConn)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	for _, c := range []net.Conn{ours, theirs} {
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return ours, theirs
}

// What is read and written, and how it fails, is the same as with package net.
func TestOf_BehavesAsPackageNet(t *testing.T) {
	for name, converse := range map[string]func(t *testing.T, c net.Conn, peer *net.TCPConn) string{
		"what is there is read, then the end": func(t *testing.T, c net.Conn, peer *net.TCPConn) string {
			write(t, peer, []byte("hello"))
			_ = peer.Close()
			text, err := io.ReadAll(c)
			n, end := c.Read(make([]byte, 1))
			return fmt.Sprint(string(text), err, n, end == io.EOF) //nolint:errorlint // as readers compare it
		},
		"nothing is asked for": func(_ *testing.T, c net.Conn, _ *net.TCPConn) string {
			n, err := c.Read(nil)
			m, also := c.Write(nil)
			return fmt.Sprint(n, err, m, also)
		},
		"it waits for what comes later": func(t *testing.T, c net.Conn, peer *net.TCPConn) string {
			read := make(chan string)
			go func() {
				p := make([]byte, 10)
				n, err := c.Read(p)
				read <- fmt.Sprint(string(p[:n]), err)
			}()
			write(t, peer, []byte("later"))
			return <-read
		},
		"the time to read is over": func(t *testing.T, c net.Conn, _ *net.TCPConn) string {
			return timed(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)), c.Read)
		},
		"the time to write is over": func(t *testing.T, c net.Conn, _ *net.TCPConn) string {
			return timed(t, c.SetWriteDeadline(time.Now().Add(time.Millisecond)), func(p []byte) (_ int, err error) {
				for err == nil { // until the peer's buffers are full
					_, err = c.Write(bytes.Repeat(p, 1<<10))
				}
				return 0, err
			})
		},
		"more than the socket takes": func(t *testing.T, c net.Conn, peer *net.TCPConn) string {
			const size = 16 << 20
			wrote := make(chan string)
			go func() {
				n, err := c.Write(bytes.Repeat([]byte("0123456789abcdef"), size/16))
				wrote <- fmt.Sprint(n, err)
			}()
			got := make([]byte, size)
			if _, err := io.ReadFull(peer, got); err != nil {
				t.Error(err)
			}
			return fmt.Sprint(<-wrote, bytes.Equal(got, bytes.Repeat([]byte("0123456789abcdef"), size/16)))
		},
		"it is closed": func(_ *testing.T, c net.Conn, _ *net.TCPConn) string {
			_ = c.Close()
			_, reading := c.Read(make([]byte, 1))
			_, writing := c.Write(make([]byte, 1))
			return fmt.Sprint(errors.Is(reading, net.ErrClosed), opOf(reading), errors.Is(writing, net.ErrClosed), opOf(writing))
		},
		"it is closed by another who reads it": func(_ *testing.T, c net.Conn, _ *net.TCPConn) string {
			began, read := make(chan struct{}), make(chan error)
			go func() {
				close(began)
				_, err := c.Read(make([]byte, 1))
				read <- err
			}()
			<-began
			_ = c.Close()
			err := <-read
			return fmt.Sprint(errors.Is(err, net.ErrClosed), opOf(err))
		},
		"the peer resets it": func(t *testing.T, c net.Conn, peer *net.TCPConn) string {
			if err := peer.SetLinger(0); err != nil {
				t.Error(err)
			}
			_ = peer.Close()
			_, reading := c.Read(make([]byte, 1))
			_, writing := c.Write(make([]byte, 1))
			return fmt.Sprint(errors.Is(reading, syscall.ECONNRESET), opOf(reading), errors.Is(writing, syscall.EPIPE), opOf(writing))
		},
	} {
		results := map[string]string{}
		for how, of := range map[string]func(net.Conn) net.Conn{"ours": Of, "net": func(c net.Conn) net.Conn { return c }} {
			c, peer := pair(t)
			results[how] = converse(t, of(c), peer)
		}
		if results["ours"] != results["net"] {
			t.Errorf("%s: %s, with package net %s", name, results["ours"], results["net"])
		}
	}
}

func write(t *testing.T, to net.Conn, p []byte) {
	t.Helper()
	if _, err := to.Write(p); err != nil {
		t.Error(err)
	}
}

func timed(t *testing.T, set error, do func([]byte) (int, error)) string {
	t.Helper()
	if set != nil {
		t.Error(set)
	}
	n, err := do(make([]byte, 64))
	var failed net.Error
	return fmt.Sprint(n, errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &failed) && failed.Timeout(), opOf(err))
}

// opOf is what package net says of where an error came from, less the addresses.
func opOf(err error) string {
	var failed *net.OpError
	if !errors.As(err, &failed) {
		return "no OpError"
	}
	return fmt.Sprint(failed.Op, failed.Net, failed.Source != nil, failed.Addr != nil, failed.Err)
}

// After a time that was over the connection goes on, at the byte where it was.
func TestOf_GoesOnAfterADeadline(t *testing.T) {
	tcp, peer := pair(t)
	c := Of(tcp)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	write(t, peer, []byte("on"))
	p := make([]byte, 2)
	if _, err := io.ReadFull(c, p); err != nil || string(p) != "on" {
		t.Fatalf("%q, %v", p, err)
	}
}

// One that is no TCP connection is left as it is, and a TCP connection can be had back.
func TestOf_LeavesOthersAlone(t *testing.T) {
	piped, _ := net.Pipe()
	if Of(piped) != piped || TCP(piped) != nil {
		t.Error("a pipe was taken for TCP")
	}
	tcp, _ := pair(t)
	if TCP(Of(tcp)) != tcp || TCP(tcp) != tcp {
		t.Error("the connection is not the one that was given")
	}
}

// An event costs no memory.
func TestOf_AllocatesNothing(t *testing.T) {
	tcp, peer := pair(t)
	c, p := Of(tcp), make([]byte, 64)
	n := testing.AllocsPerRun(100, func() {
		write(t, peer, p)
		if _, err := io.ReadFull(c, p); err != nil {
			t.Error(err)
		}
		if _, err := c.Write(p); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(peer, p); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Who asks and then reads finds what one finds who writes and then reads, and reads once: what comes back at once, late
// or in part, the end of a connection, and a time that is over.
func TestAsk_ReadsWhatComesBack(t *testing.T) {
	request := []byte("how much?")
	for name, answers := range map[string]func(t *testing.T, peer *net.TCPConn){
		"at once": func(t *testing.T, peer *net.TCPConn) { answer(t, peer, request, "42") },
		"in turn": func(t *testing.T, peer *net.TCPConn) {
			for range 1000 {
				answer(t, peer, request, "42")
			}
		},
		"then the end": func(t *testing.T, peer *net.TCPConn) {
			answer(t, peer, request, "4")
			_ = peer.CloseWrite()
		},
		"no, ever": func(*testing.T, *net.TCPConn) {},
	} {
		results := map[string]string{}
		for how, of := range map[string]func(net.Conn) net.Conn{"ours": Of, "net": func(c net.Conn) net.Conn { return c }} {
			tcp, peer := pair(t)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				answers(t, peer)
			}()
			c := of(tcp)
			if name == "no, ever" {
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			}
			results[how] = conversation(c, request, map[bool]int{true: 1000, false: 1}[name == "in turn"])
			<-answered
		}
		if results["ours"] != results["net"] {
			t.Errorf("%s: %s, with package net %s", name, results["ours"], results["net"])
		}
	}
}

// Nothing is written where something has come that was not asked for, nor where the connection has ended: who waits for
// what is there already would wait for ever. A request that the socket does not take is written in part.
func TestAsk_WritesWhereThePeerIsQuiet(t *testing.T) {
	for name, before := range map[string]func(peer *net.TCPConn){
		"something has come": func(peer *net.TCPConn) { write(t, peer, []byte("x")) },
		"it has ended":       func(peer *net.TCPConn) { _ = peer.CloseWrite() },
		"it was reset":       func(peer *net.TCPConn) { _, _ = peer.SetLinger(0), peer.Close() },
	} {
		tcp, peer := pair(t)
		c := Of(tcp)
		if !Asks(c) { // with the race detector
			return
		}
		before(peer)
		isThere(t, c)
		if n, err := Ask(c, []byte("how much?")); n != 0 || !errors.Is(err, ErrUnasked) {
			t.Errorf("%s: wrote %d bytes, %v", name, n, err)
		}
	}
	tcp, _ := pair(t)
	if n, err := Ask(Of(tcp), make([]byte, 64<<20)); n == 0 || n == 64<<20 || err != nil {
		t.Errorf("the socket took %d of 64 MB, %v", n, err)
	}
}

// isThere waits until there is something to be read, or the connection has ended, and takes nothing.
func isThere(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := TCP(c).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(err, syscall.EAGAIN)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// conversation asks some times, and is what came back, or how it ended.
func conversation(c net.Conn, request []byte, times int) (all string) {
	ask := c.Write
	if Asks(c) {
		ask = func(p []byte) (int, error) { return Ask(c, p) }
	}
	for range times {
		if n, err := ask(request); n != len(request) || err != nil {
			return fmt.Sprint(all, n, opOf(err))
		}
		answer := make([]byte, 2)
		n, err := io.ReadFull(c, answer)
		if all += string(answer[:n]); err != nil {
			return fmt.Sprint(all, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), opOf(err))
		}
	}
	return all
}

// answer is what a server does with one request.
func answer(t *testing.T, peer net.Conn, request []byte, with string) {
	t.Helper()
	got := make([]byte, len(request))
	if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, request) {
		t.Errorf("%q came, %v", got, err)
	}
	write(t, peer, []byte(with))
}
