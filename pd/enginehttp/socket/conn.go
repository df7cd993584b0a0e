package socket

import "net"

// Of returns a connection by which conn is read and written. Where conn is no TCP connection that is conn itself.
func Of(conn net.Conn) net.Conn {
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return conn
	}
	return newConn(tcp)
}

// TCP is the TCP connection that Of was given, nil if it was none.
func TCP(conn net.Conn) *net.TCPConn {
	switch c := conn.(type) {
	case *net.TCPConn:
		return c
	case interface{ tcp() *net.TCPConn }:
		return c.tcp()
	}
	return nil
}
