package standby

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/pubsub"
)

// usesChannel is the channel, behind the configured prefix, on which gateways report the adapters that they use.
const usesChannel = "{adapters}"

const (
	usesInterval = time.Second // between two reports
	maxUses      = 4 << 20     // bytes of a report that is read
)

// AdapterUses lets gateways that share a Redis know which adapters each uses on which servers, so that none unloads as
// idle what requests of another need. While Redis is away each knows of its own uses alone.
type AdapterUses struct {
	fleet   *pools.Fleet
	client  redis.UniversalClient
	channel string
	id      string
	log     *slog.Logger
}

// usesMessage is a report: the adapters that a gateway has used since its last one, by server.
type usesMessage struct {
	Replica string              `json:"r"`
	Uses    map[string][]string `json:"u"`
}

// NewAdapterUses returns the sharing of what a fleet's adapters are used for, under a gateway's id.
func NewAdapterUses(fleet *pools.Fleet, client redis.UniversalClient, prefix, id string, log *slog.Logger) *AdapterUses {
	return &AdapterUses{fleet: fleet, client: client, channel: prefix + usesChannel, id: id, log: log}
}

// Run shares until the context ends, where there are adapters that may be unloaded.
func (u *AdapterUses) Run(ctx context.Context) {
	if len(u.fleet.Config().Adapters.Directory) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			u.listen(ctx)
			pools.Pause(ctx, usesInterval)
		}
	}()
	defer func() { <-done }()
	tick := time.NewTicker(usesInterval)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := u.report(ctx, since); err != nil {
				u.log.Debug("uses of adapters were not reported", "error", err.Error())
				continue // the next report has them too
			}
			since = now
		}
	}
}

// report publishes what this gateway holds, and has used since a time.
func (u *AdapterUses) report(ctx context.Context, since time.Time) error {
	m := usesMessage{Replica: u.id, Uses: make(map[string][]string)}
	for _, s := range u.fleet.Servers() {
		if names := s.LoadRequests().UsedSince(since); len(names) > 0 {
			m.Uses[s.ID()] = names
		}
	}
	if len(m.Uses) == 0 {
		return nil
	}
	message, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return u.client.Publish(ctx, u.channel, message).Err()
}

// listen takes reports in until the connection fails.
func (u *AdapterUses) listen(ctx context.Context) {
	sub := u.client.Subscribe(ctx, u.channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.ReceiveTimeout(ctx, usesInterval); err != nil {
		return
	}
	pubsub.Receive(ctx, sub, func(m *redis.Message) { u.take([]byte(m.Payload), time.Now()) })
}

// take reads one report. What it cannot read, and adapters that are not in the directory, it ignores: others may write to
// this Redis.
func (u *AdapterUses) take(message []byte, now time.Time) {
	var m usesMessage
	if len(message) > maxUses || json.Unmarshal(message, &m) != nil || m.Replica == u.id {
		return
	}
	directory := u.fleet.Config().Adapters
	for _, s := range u.fleet.Servers() {
		for _, name := range m.Uses[s.ID()] {
			if _, known := directory.Find(name); known {
				s.LoadRequests().RecordOthersUse(name, now)
			}
		}
	}
}
