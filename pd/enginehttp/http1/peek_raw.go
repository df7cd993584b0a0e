//go:build linux && (amd64 || arm64)

package http1

import (
	"syscall"
	"unsafe"
)

// peek notes whether a socket is open with nothing to be read. It takes nothing away, and no memory: the
// standard library's Recvfrom makes room for an address each time.
func (c *conn) peek(fd uintptr) {
	_, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&c.byte)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	c.quiet = err == syscall.EAGAIN
}
