package serving

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/url"
	"os"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/gateway/peers"
)

// meetPeers wires the admin port with those of the gateways that share a Redis with this one, so that
// each answers for all.
func (n *Node) meetPeers(token func() string) error {
	cfg := &n.cfg
	self := peers.Peer{ID: n.instance, Admin: cfg.adminURL(n.ports.operator.Addr()), Version: version.String()}
	conf, err := cfg.ports.askTLS(n.log)
	if err != nil {
		return err
	}
	if n.sharing.redis != nil {
		n.sharing.gateways = peers.NewDirectory(n.sharing.redis, cfg.redis.Prefix, self, n.log)
	}
	n.peers = peers.NewAsker(self, n.sharing.gateways, token, conf)
	return nil
}

// adminURL is where other gateways reach the admin port that is bound here.
func (c *config) adminURL(bound net.Addr) string {
	u := url.URL{Scheme: "http", Host: bound.String()}
	if c.ports.adminTLS.Cert != "" {
		u.Scheme = "https"
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil && net.ParseIP(host).IsUnspecified() {
		u.Host = net.JoinHostPort(c.redis.ownHost(), port)
	}
	return u.String()
}

// ownHost is how other gateways reach this machine: as configured, else the address that it reaches
// Redis from, else its name.
func (c *RedisConfig) ownHost() string {
	if c.host != "" {
		return c.host
	}
	if !c.Alone() {
		if own, towardsRedis, err := c.ownAddress(); err == nil && towardsRedis {
			return own
		}
	}
	name, _ := os.Hostname() // nothing better is known
	return name
}

// askTLS is the client's side of TLS towards the admin ports of others: they show a certificate of
// the authority that clients are checked by, or where there is none one of the system's, or the same
// as this port's.
func (c *portsConfig) askTLS(log *slog.Logger) (func() *tls.Config, error) {
	if c.adminTLS.Cert == "" || c.adminTLS.ClientCA != "" {
		return c.adminTLS.Peer(log)
	}
	trusted, err := porttls.ReadAuthorities(porttls.AuthorityFile{Setting: "admin-cert", File: c.adminTLS.Cert, System: true}, log)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config { return &tls.Config{RootCAs: trusted.Current(), MinVersion: tls.VersionTLS12} }, nil
}
