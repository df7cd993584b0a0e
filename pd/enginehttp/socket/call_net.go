//go:build unix && (race || !linux || !(amd64 || arm64))

package socket

import (
	"errors"
	"syscall"
)

// isQuiet reports whether a socket is open with nothing to be read.
func isQuiet(fd uintptr) bool {
	_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return errors.Is(err, syscall.EAGAIN)
}
