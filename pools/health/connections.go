package health

import (
	"context"
	"errors"
	"net"
	"net/url"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// How it is found out that nothing listens any more.
const (
	refusalWait  = 100 * time.Millisecond // for an answer to a connection attempt
	refusalPause = 25 * time.Millisecond  // a process that is ending may still listen
)

// RefusesConnections reports whether nothing listens at the server's address any more: a
// process that died refuses at once. It is asked after a connection was lost.
func RefusesConnections(ctx context.Context, s *pools.Server) bool {
	u, err := url.Parse(s.URL)
	if err != nil {
		return false
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), u.Scheme) // http and https are names of ports
	}
	return refuses(ctx, address) || pools.Pause(ctx, refusalPause) && refuses(ctx, address)
}

func refuses(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, refusalWait)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
