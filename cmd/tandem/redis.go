package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
)

// redisConfig says where replicas meet. Without addresses the gateway is alone.
type redisConfig struct {
	addrs        []string
	master       string // name that Sentinels know; the addresses are theirs then
	cluster      bool
	user         string
	passwordFile string
	tls          bool
	database     int
	prefix       string
	replica      string
}

func (c *redisConfig) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.addrs, "redis", c.addrs, "`addresses` of Redis or Valkey, host:port; empty: this gateway is alone")
	fs.StringVar(&c.master, "redis-master", c.master, "`name` of the master, where the addresses are Sentinels")
	fs.BoolVar(&c.cluster, "redis-cluster", c.cluster, "the addresses are nodes of a cluster")
	fs.StringVar(&c.user, "redis-user", c.user, "ACL `user`")
	fs.StringVar(&c.passwordFile, "redis-password-file", c.passwordFile, "`file` that holds the password")
	fs.BoolVar(&c.tls, "redis-tls", c.tls, "connect by TLS")
	fs.IntVar(&c.database, "redis-database", c.database, "database `number`; not for a cluster")
	fs.StringVar(&c.prefix, "redis-prefix", c.prefix, "`text` that all keys begin with; one for each fleet that shares a Redis")
	fs.StringVar(&c.replica, "replica", c.replica, "`name` of this replica among those that share the Redis; empty: a random one")
}

func (c *redisConfig) validate() error {
	if len(c.addrs) == 0 {
		return nil
	}
	if c.cluster && (c.master != "" || c.database != 0) {
		return errors.New("redis-cluster has neither a master's name nor a database number")
	}
	if c.prefix == "" {
		return errors.New("redis-prefix must not be empty: others may use the Redis")
	}
	return nil
}

// redisPool is how many connections there may be: each engine that dials keeps one
// of its followers' in a waiting read.
const redisPool = 512

// client returns a client that fails fast: nothing that a request waits for goes
// through it, and what does not get through now is told again soon. Connecting is
// its own business; a Redis that is away at start is no error.
func (c *redisConfig) client() (redis.UniversalClient, error) {
	o := &redis.UniversalOptions{
		Addrs:                 c.addrs,
		MasterName:            c.master,
		IsClusterMode:         c.cluster,
		Username:              c.user,
		DB:                    c.database,
		ClientName:            "tandem",
		DialTimeout:           200 * time.Millisecond,
		ReadTimeout:           200 * time.Millisecond,
		WriteTimeout:          200 * time.Millisecond,
		PoolTimeout:           200 * time.Millisecond,
		PoolSize:              redisPool,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
	}
	if c.passwordFile != "" {
		password, err := os.ReadFile(c.passwordFile)
		if err != nil {
			return nil, fmt.Errorf("redis-password-file: %w", err)
		}
		o.Password = strings.TrimSpace(string(password))
	}
	if c.tls {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return redis.NewUniversalClient(o), nil
}

// redisLog sends what go-redis writes to stderr into the log, as details: that
// Redis is away is told once by those who use it.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(_ context.Context, format string, v ...any) {
	l.log.Debug("redis client", "message", fmt.Sprintf(format, v...))
}

// replicaName is the configured name, or one that no other replica has.
func (c *redisConfig) replicaName() string {
	if c.replica != "" {
		return c.replica
	}
	return uuid.NewString()
}

// background runs what works beside the requests until the context ends: listening to
// KV events, and what goes through Redis.
func (n *node) background(ctx context.Context) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var parts sync.WaitGroup
		parts.Go(func() { n.feeds.run(ctx) })
		if n.redis != nil {
			parts.Go(func() { n.replicas.Run(ctx) })
			parts.Go(func() { n.lessons.Run(ctx) })
			parts.Go(func() { n.ledger.Run(ctx) })
			parts.Go(func() { n.feeds.shared.Run(ctx, n.cfg.kv.snapshots) })
		}
		parts.Wait()
		if err := n.feeds.hub.Close(); err != nil {
			n.log.Warn("ZMQ did not end well", "error", err.Error())
		}
		if n.redis != nil {
			_ = n.redis.Close() // nothing is left to say
		}
	}()
	return ended
}
