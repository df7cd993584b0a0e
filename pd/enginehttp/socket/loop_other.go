//go:build !linux

package socket

import (
	"errors"
	"net"
)

// Loop takes no connection where there is no epoll.
type Loop struct{}

// Taken is a connection that is out of the runtime's poller.
type Taken struct{}

// Take returns nil.
func (*Loop) Take(net.Conn) *Taken { return nil }

func (*Taken) Follow(Room, func(n int, err error) (goOn bool)) error { return errors.ErrUnsupported }
func (*Taken) Read([]byte) (int, error)                              { return 0, errors.ErrUnsupported }
func (*Taken) GiveBack() (net.Conn, error)                           { return nil, errors.ErrUnsupported }
func (*Taken) Close() error                                          { return errors.ErrUnsupported }
func (*Taken) Shutdown()                                             {}

// SendNow writes nothing.
func SendNow(net.Conn, []byte) int { return 0 }
