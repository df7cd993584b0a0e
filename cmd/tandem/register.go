package main

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/serving"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

// registerCommand keeps one server in the registry for as long as it runs.
func registerCommand() *cobra.Command {
	var entry discovery.Entry
	redis := serving.DefaultRedis()
	ttl := 10 * time.Second
	rank := -1
	cmd := &cobra.Command{
		Use:   "register",
		Short: "Register a server in Redis, where gateways with --registry find it",
		Long: `Register a server in Redis, where gateways with --registry find it, until this
command is stopped: then the server leaves the fleet, and what it has in flight runs
out. If the command fails, the server is removed when the time to live ends.

The record is JSON under a key with that time to live, and its name is in a set. It can
be written without this command:

  redis-cli SET tandem:server:10.0.0.1:8000 '{"url":"http://10.0.0.1:8000","role":"prefill"}' EX 10
  redis-cli SADD tandem:servers 10.0.0.1:8000

Its fields are those of a server in the configuration file, and "role".`,
		Example: `  tandem register --redis redis:6379 --url http://10.0.0.1:8000 --role prefill --rack r1`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if redis.Alone() {
				return errors.New("say where the Redis is, with --redis")
			}
			if ttl < time.Second {
				return errors.New("ttl must be a second at least")
			}
			if rank >= 0 {
				entry.Rank = &rank
			}
			log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
			serving.RouteRedisLog(log)
			client, err := redis.Client()
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			return discovery.Register(cmd.Context(), client, redis.Prefix, entry, ttl, log)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.DurationVar(&ttl, "ttl", ttl, "time after which the server is forgotten if this command fails")
	f.IntVar(&rank, "rank", rank, "data-parallel `rank` behind the URL; below 0: none")
	bindEntry(f, &entry)
	redis.Bind(f)
	return cmd
}

// bindEntry names the fields of a server as flags.
func bindEntry(f *pflag.FlagSet, e *discovery.Entry) {
	f.StringVar(&e.URL, "url", "", "`URL` of the engine's HTTP server")
	f.StringVar(&e.Role, "role", "", "prefill, decode or both")
	f.StringVar(&e.Connector, "connector", "", "how decode obtains the KV; empty: as the engine reports")
	f.StringVar(&e.KVAddress, "kv-address", "", "`host:port` where other engines reach its KV")
	f.StringVar(&e.Weights, "weights", "", "version of the weights")
	f.StringVar(&e.Group, "group", "", "servers of a group step in lockstep")
	f.StringVar(&e.Store, "store", "", "KV store that it shares with the servers of that name")
	f.StringVar(&e.Layout, "layout", "", "whatever else the KV depends on")
	f.StringVar(&e.GPUs, "gpus", "", "servers with the same share GPUs, and one of them is awake")
	f.StringVar(&e.Host, "host", "", "topology label")
	f.StringVar(&e.Rack, "rack", "", "topology label")
	f.StringVar(&e.Zone, "zone", "", "topology label")
	f.StringVar(&e.Events, "events", "", "ZMQ `address` of its KV events")
	f.StringVar(&e.Replay, "replay", "", "ZMQ `address` that replays missed events")
	f.BoolVar(&e.EventBind, "events-bind", false, "the engine is in connect mode, and events is where the gateway listens for it")
	f.StringVar(&e.Metrics, "metrics", "", "`URL` of its Prometheus metrics, where they are not at its own address")
	f.StringVar(&e.ORCA, "orca", "", "`host:port` of its OpenRcaService")
	f.BoolVar(&e.Drain, "drain", false, "it takes no new request")
}
