//go:build linux && (race || !(amd64 || arm64))

package socket

import (
	"errors"
	"syscall"
)

// receive reads once into p.
func receive(fd uintptr, p []byte) (int, syscall.Errno) { return again(syscall.Read, fd, p) }

// send writes once of p.
func send(fd uintptr, p []byte) (int, syscall.Errno) { return again(syscall.Write, fd, p) }

// again makes a system call, and makes it again where a signal came between. The race detector sees it.
func again(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, err := call(int(fd), p)
		var failed syscall.Errno
		if !errors.As(err, &failed) {
			return n, 0
		}
		if failed != syscall.EINTR {
			return 0, failed
		}
	}
}
