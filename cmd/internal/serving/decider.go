package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/leader"
)

// deciderConfig says how replicas that bind late find one that decides for all.
type deciderConfig struct {
	listen   string
	patience time.Duration
	tls      porttls.Config
}

func (c *deciderConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "decider-listen", c.listen,
		"`address` at which other replicas reach this one when it decides for all; empty: any port, at the address that Redis is "+
			"reached from or, while none of its names is found, other networks")
	fs.DurationVar(&c.patience, "decider-patience", c.patience,
		"silence of the replica that decides, after which this one binds its requests itself")
	c.tls.Bind(fs, "decider", "other replicas, whose port is checked by it too")
}

func (c *deciderConfig) validate() error {
	if c.patience <= 0 {
		return errors.New("decider-patience must be positive")
	}
	if c.listen != "" {
		if err := checkListen(c.listen); err != nil {
			return fmt.Errorf("decider-listen %q: %w", c.listen, err)
		}
	}
	if c.tls.Cert != "" && c.tls.ClientCA == "" {
		return errors.New("decider-cert needs decider-client-ca: replicas check each other")
	}
	return c.tls.Validate()
}

// credentials are those with which replicas meet, as server and as client.
func (c *deciderConfig) credentials(log *slog.Logger) (server, client credentials.TransportCredentials, err error) {
	served, err := c.tls.Server(tls.RequireAndVerifyClientCert, log)
	if err != nil {
		return nil, nil, err
	}
	if served == nil {
		return insecure.NewCredentials(), insecure.NewCredentials(), nil
	}
	asked, err := c.tls.Peer(log)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(served), peerCredentials{credentials.NewTLS(asked()), asked}, nil
}

// peerCredentials are those of a client whose authorities may be replaced while it runs.
type peerCredentials struct {
	credentials.TransportCredentials // as they were at the start
	config                           func() *tls.Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (p peerCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(p.config()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

// decider is this replica's part in deciding together with others.
type decider struct {
	election *leader.Election
	follower *leader.Follower
	listener net.Listener
	grpc     *grpc.Server
	log      *slog.Logger
	retire   context.CancelFunc // ends the candidacy
	retired  context.Context
}

// decideTogether lets a late binder follow, and be followed.
func (n *Node) decideTogether(binder *pd.Binder, reg prometheus.Registerer) error {
	served, asked, err := n.cfg.decider.credentials(n.log)
	if err != nil {
		return err
	}
	listener, address, err := n.cfg.openDecider(n.log)
	if err != nil {
		return err
	}
	metrics := leader.NewMetrics(reg)
	d := &decider{listener: listener, log: n.log}
	d.election = leader.NewElection(n.sharing.redis, n.cfg.redis.Prefix, n.instance, address, n.log)
	d.follower = leader.NewFollower(d.election, n.instance, n.sharing.replicas, asked, metrics, n.log)
	d.grpc = leader.NewServer(d.election, binder.Late.RemoteRequests(), n.sharing.replicas, metrics, n.log).GRPC(grpc.Creds(served))
	d.retired, d.retire = context.WithCancel(context.Background())
	d.follower.Patience = n.cfg.decider.patience
	binder.Leader = d.follower
	n.sharing.decider = d
	return nil
}

// openDecider listens, and returns where others find it.
func (c *config) openDecider(log *slog.Logger) (net.Listener, string, error) {
	own := func() (string, error) {
		host, towardsRedis, err := c.redis.ownAddress()
		if err == nil && !towardsRedis {
			log.Warn("no name of Redis is found: other replicas are told the address that other networks are reached from; set decider-listen where that is not theirs to reach", "address", host)
		}
		return host, err
	}
	listen := c.decider.listen
	if listen == "" {
		host, err := own()
		if err != nil {
			return nil, "", err
		}
		listen = net.JoinHostPort(host, "0")
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, "", fmt.Errorf("listen for replicas that follow: %w", err)
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, "", errors.Join(err, listener.Close())
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = c.redis.host
		if host == "" {
			if host, err = own(); err != nil {
				return nil, "", errors.Join(err, listener.Close())
			}
		}
	}
	return listener, net.JoinHostPort(host, port), nil
}

// ownAddress is the address that this machine reaches Redis from, by the first name that is found. While none is, as
// those of pods and containers that do not run are not, it is the one that it reaches other networks from.
func (c *RedisConfig) ownAddress() (host string, towardsRedis bool, err error) {
	addrs, _, err := c.endpoints()
	if err != nil {
		return "", false, err
	}
	// Of other networks (for documentation: RFC 5737, 3849), and of this machine.
	elsewhere := []string{"192.0.2.1:9", "[2001:db8::1]:9", "127.0.0.1:9"}
	var faults []error
	for i, addr := range append(addrs, elsewhere...) {
		host, err := addressTowards(addr)
		if err == nil {
			return host, i < len(addrs), nil
		}
		faults = append(faults, err)
	}
	return "", false, fmt.Errorf("find the own address: %w", errors.Join(faults...))
}

// addressTowards is the address that this machine reaches another one from. Nothing is sent but a question for a name.
func addressTowards(addr string) (string, error) {
	const patience = time.Second
	conn, err := (&net.Dialer{Timeout: patience}).Dial("udp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

// run takes part until the context ends.
func (d *decider) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := d.grpc.Serve(d.listener); err != nil {
			d.log.Error("other replicas cannot follow this one", "error", err.Error())
		}
	})
	standing, stop := context.WithCancel(ctx)
	defer context.AfterFunc(d.retired, stop)()
	defer stop()
	parts.Go(func() { d.election.Run(standing) })
	parts.Go(func() { d.follower.Run(ctx) })
	<-ctx.Done()
	d.grpc.Stop()
	parts.Wait()
}

// Retire lets another replica be elected; nil has nothing to do.
func (d *decider) Retire() {
	if d != nil {
		d.retire()
	}
}

// Close gives up what was opened and is not run.
func (d *decider) Close() error {
	if d == nil {
		return nil
	}
	return d.listener.Close()
}
