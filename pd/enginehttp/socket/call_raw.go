//go:build !race && linux && (amd64 || arm64)

package socket

import (
	"syscall"
	"unsafe"
)

// receive reads once into p.
func receive(fd uintptr, p []byte) (n int, err syscall.Errno) {
	return call(syscall.SYS_RECVFROM, fd, p, 0)
}

// send writes once of p.
func send(fd uintptr, p []byte) (n int, err syscall.Errno) {
	return call(syscall.SYS_SENDTO, fd, p, syscall.MSG_NOSIGNAL)
}

// isQuiet reports whether a socket is open with nothing to be read. It takes nothing away, and no memory: the standard
// library's Recvfrom makes room for an address each time.
func isQuiet(fd uintptr) bool {
	var one [1]byte
	_, err := call(syscall.SYS_RECVFROM, fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN
}

// call makes a system call that receives into p, or sends from it, and makes it again where a signal came between.
// Those of sockets do 0.15 us less than those of files before they come to the socket.
func call(number, fd uintptr, p []byte, flags uintptr) (n int, err syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall6(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		if err != syscall.EINTR {
			return int(n), err
		}
	}
}
