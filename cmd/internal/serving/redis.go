package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
)

// RedisConfig says where replicas meet. Without addresses the gateway is alone.
type RedisConfig struct {
	addrs        []string // host:port, redis:// or rediss://
	master       string   // name that Sentinels know; the addresses are theirs then
	cluster      bool
	user         string
	passwordFile string
	database     int
	Prefix       string // that all keys begin with
	replica      string
	host         string // where engines in connect mode reach this replica

	sentinelUser         string
	sentinelPasswordFile string

	tls      bool
	ca       porttls.AuthorityFile // without a file: the system's
	certFile string                // with keyFile; empty: no certificate is shown
	keyFile  string

	log *slog.Logger // of authorities that are read again; nil: none
}

// DefaultRedis is none.
func DefaultRedis() RedisConfig { return RedisConfig{Prefix: "tandem:"} }

// Bind names the settings.
func (c *RedisConfig) Bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.addrs, "redis", c.addrs,
		"`addresses` of Redis or Valkey, host:port or rediss://host:port; empty: this gateway is alone")
	fs.StringVar(&c.master, "redis-master", c.master, "`name` of the master, where the addresses are Sentinels")
	fs.BoolVar(&c.cluster, "redis-cluster", c.cluster, "the addresses are nodes of a cluster; for a single one, several mean it")
	fs.StringVar(&c.user, "redis-user", c.user, "ACL `user`")
	fs.StringVar(&c.passwordFile, "redis-password-file", c.passwordFile, "`file` that holds the password; read again for each connection")
	fs.StringVar(&c.sentinelUser, "redis-sentinel-user", c.sentinelUser, "ACL `user` of the Sentinels")
	fs.StringVar(&c.sentinelPasswordFile, "redis-sentinel-password-file", c.sentinelPasswordFile, "`file` that holds the Sentinels' password; read again for each connection")
	fs.BoolVar(&c.tls, "redis-tls", c.tls, "connect by TLS, as rediss:// addresses do")
	fs.StringVar(&c.ca.File, "redis-ca-file", c.ca.File,
		"PEM `file` of the authorities that Redis' certificate is checked by, read again when it has changed; empty: the system's")
	fs.StringVar(&c.certFile, "redis-cert-file", c.certFile, "PEM `file` of the certificate that is shown to Redis; read again for each connection")
	fs.StringVar(&c.keyFile, "redis-key-file", c.keyFile, "PEM `file` of its key")
	fs.IntVar(&c.database, "redis-database", c.database, "database `number`; not for a cluster")
	fs.StringVar(&c.Prefix, "redis-prefix", c.Prefix, "`text` that all keys begin with; one for each fleet that shares a Redis")
	fs.StringVar(&c.replica, "replica", c.replica, "`name` of this replica among those that share the Redis; empty: a random one")
	fs.StringVar(&c.host, "replica-host", c.host,
		"`host` at which engines in connect mode reach this replica, published with the name of the replica that receives from them; empty: its host name")
}

// Alone reports whether there is no Redis.
func (c *RedisConfig) Alone() bool { return len(c.addrs) == 0 }

func (c *RedisConfig) validate() error {
	if c.Alone() {
		if c.master != "" || c.cluster {
			return errors.New("redis-master and redis-cluster say what the addresses of redis are, of which there are none")
		}
		return nil
	}
	if c.clustered() && (c.master != "" || c.database != 0) {
		return errors.New("a Redis cluster has neither a master's name nor a database number")
	}
	if c.Prefix == "" {
		return errors.New("redis-prefix must not be empty: others may use the Redis")
	}
	if strings.ContainsAny(c.replica+c.host, " \t\n") {
		return errors.New("replica and replica-host must have no spaces in them")
	}
	_, encrypted, err := c.endpoints()
	if err != nil {
		return err
	}
	if !encrypted && c.ca.File+c.certFile+c.keyFile != "" {
		return errors.New("redis-ca-file, redis-cert-file and redis-key-file are of TLS: say redis-tls or rediss://")
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return errors.New("redis-cert-file and redis-key-file belong together")
	}
	return nil
}

// clustered reports whether the addresses are nodes of a cluster: configured so, or several
// that are no Sentinels.
func (c *RedisConfig) clustered() bool {
	return c.cluster || len(c.addrs) > 1 && c.master == ""
}

// endpoints are the addresses as host:port, and whether TLS is spoken to them.
func (c *RedisConfig) endpoints() (addrs []string, encrypted bool, err error) {
	encrypted = c.tls
	for _, addr := range c.addrs {
		scheme, rest, isURL := strings.Cut(addr, "://")
		switch {
		case !isURL:
			rest = addr
		case scheme == "rediss":
			encrypted = true
		case scheme != "redis":
			return nil, false, fmt.Errorf("redis %q: want host:port, redis://host:port or rediss://host:port", addr)
		}
		if strings.ContainsAny(rest, "@/?") { // not quoted: a password may be in it
			return nil, false, errors.New("redis addresses hold host and port only; user, password and database are settings of their own")
		}
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return nil, false, fmt.Errorf("redis %q: want host:port", addr)
		}
		addrs = append(addrs, rest)
	}
	return addrs, encrypted, nil
}

const (
	// redisPool is how many connections there may be: each engine in connect mode keeps one
	// of its followers' in a waiting read.
	redisPool = 512
	// redisTopology is how old the list of a cluster's masters may be. A master that failed
	// does not report its successor.
	redisTopology = time.Second
)

// redisHandshake is how long connecting with TLS may take. A busy machine needs many times as long for the handshake as
// to reach Redis, and one that is given up is begun again, by all who want something of Redis.
const redisHandshake = 2 * time.Second

// Client returns a client that fails fast: nothing that a request waits for goes
// through it, and what does not get through now is sent again soon. Connecting is
// its own business; a Redis that is away at start is no error.
func (c *RedisConfig) Client() (redis.UniversalClient, error) {
	o := &redis.UniversalOptions{
		MasterName:               c.master,
		SentinelUsername:         c.sentinelUser,
		DB:                       c.database,
		ClientName:               "tandem",
		DisableIdentity:          true, // its command is newer than Redis 7.0, and an ACL user would need it
		DialTimeout:              200 * time.Millisecond,
		ReadTimeout:              200 * time.Millisecond,
		WriteTimeout:             200 * time.Millisecond,
		PoolTimeout:              200 * time.Millisecond,
		PoolSize:                 redisPool,
		MaxRetries:               -1,
		DialerRetries:            1,
		MaxRedirects:             1, // to where a slot has moved
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // Redis Enterprise's
	}
	addrs, encrypted, err := c.endpoints()
	if err != nil {
		return nil, err
	}
	o.Addrs = addrs
	if o.SentinelPassword, err = c.sentinelPassword(); err != nil {
		return nil, err
	}
	if _, err = c.password(); err != nil {
		return nil, err
	}
	o.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
		password, err = c.password()
		return c.user, password, err
	}
	if encrypted {
		config, err := c.tlsConfig()
		if err != nil {
			return nil, err
		}
		o.TLSConfig = config() // says that TLS is spoken
		toReach := o.DialTimeout
		o.DialTimeout = redisHandshake
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: toReach}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return handshake(ctx, conn, config(), addr)
		}
	}
	if c.clustered() {
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = redisTopology
		return redis.NewClusterClient(cluster), nil
	}
	if c.master == "" {
		return redis.NewClient(o.Simple()), nil
	}
	sentinels := o.Failover()
	client := redis.NewFailoverClient(sentinels)
	client.AddHook(unknownMaster{c.master})
	client.AddHook(&sentinelPassword{read: c.sentinelPassword, sentinels: sentinels})
	return client, nil
}

// handshake speaks TLS with the server of an address.
func handshake(ctx context.Context, conn net.Conn, config *tls.Config, addr string) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config.ServerName = host
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return encrypted, nil
}

// password is what the file of the password holds now: each new connection reads it, so that it may be replaced.
func (c *RedisConfig) password() (string, error) {
	return secretfile.Read("redis-password-file", c.passwordFile)
}

func (c *RedisConfig) sentinelPassword() (string, error) {
	return secretfile.Read("redis-sentinel-password-file", c.sentinelPasswordFile)
}

// secretFiles are the files of passwords, by their settings.
func (c *RedisConfig) secretFiles() map[string]string {
	return map[string]string{"redis-password-file": c.passwordFile, "redis-sentinel-password-file": c.sentinelPasswordFile}
}

// sentinelPassword gives the client of Sentinels the password that the file holds by then. go-redis reads the options
// of Sentinels while it connects to the master and at no other time.
type sentinelPassword struct {
	read func() (string, error)

	mu        sync.RWMutex // guards the password in sentinels; held for reading while go-redis connects
	sentinels *redis.FailoverOptions
}

// DialHook implements redis.Hook.
func (p *sentinelPassword) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := p.renew(); err != nil {
			return nil, err
		}
		p.mu.RLock()
		defer p.mu.RUnlock()
		return next(ctx, network, addr)
	}
}

func (p *sentinelPassword) renew() error {
	password, err := p.read()
	if err != nil {
		return err
	}
	p.mu.RLock()
	is := p.sentinels.SentinelPassword == password
	p.mu.RUnlock()
	if is {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sentinels.SentinelPassword = password
	return nil
}

// ProcessHook implements redis.Hook.
func (*sentinelPassword) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (*sentinelPassword) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// unknownMaster makes an error of its own of what Sentinels answer that do not know the master: redis.Nil, which
// everywhere else says that Redis answered and has no such key.
type unknownMaster struct{ name string }

func (m unknownMaster) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("no Sentinel that answers knows a master %q (redis-master): %s", m.name, err.Error()) // not wrapped: it is no redis.Nil
		}
		return conn, err
	}
}

func (unknownMaster) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (unknownMaster) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// tlsConfig reads the files of TLS, and returns what holds for one more connection: the certificate that is shown and
// the authorities may be renewed.
func (c *RedisConfig) tlsConfig() (func() *tls.Config, error) {
	authorities := func() *x509.CertPool { return nil } // the system's
	if c.ca.File != "" {
		log := c.log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		file := c.ca
		file.Setting = "redis-ca-file"
		trusted, err := porttls.ReadAuthorities(file, log)
		if err != nil {
			return nil, err
		}
		authorities = trusted.Current
	}
	config := func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities()} }
	if c.certFile == "" {
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("redis-cert-file: %w", err)
		}
		return &pair, nil
	}
	_, err := load()
	return func() *tls.Config {
		t := config()
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
		return t
	}, err
}

// RouteRedisLog sends what go-redis writes to stderr into a log, for all clients of the process.
func RouteRedisLog(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

// redisLog sends what go-redis writes to stderr into the log, as details: that Redis is
// away is logged once by its users.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(_ context.Context, format string, v ...any) {
	l.log.Debug("redis client", "message", fmt.Sprintf(format, v...))
}

// replicaName is the configured name, or one that no other replica has.
func (c *RedisConfig) replicaName() string {
	if c.replica != "" {
		return c.replica
	}
	return uuid.NewString()
}

// advertised is an address that this replica binds as engines elsewhere may connect to it.
func (c *RedisConfig) advertised(bound string) string {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(bound, "tcp://"))
	if err != nil || host != "*" && host != "" && host != "0.0.0.0" && host != "::" {
		return bound
	}
	if host = c.host; host == "" {
		host, _ = os.Hostname() // nothing better is known
	}
	return "tcp://" + net.JoinHostPort(host, port)
}
