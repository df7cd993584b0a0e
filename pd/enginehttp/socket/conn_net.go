//go:build race || !linux || !(amd64 || arm64)

package socket

import "net"

func newConn(tcp *net.TCPConn) net.Conn { return tcp }
