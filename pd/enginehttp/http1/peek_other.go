//go:build unix && !(linux && (amd64 || arm64))

package http1

import (
	"errors"
	"syscall"
)

// peek notes whether a socket is open with nothing to be read.
func (c *conn) peek(fd uintptr) {
	_, _, err := syscall.Recvfrom(int(fd), c.byte[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.quiet = errors.Is(err, syscall.EAGAIN)
}
