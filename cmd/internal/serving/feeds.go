package serving

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/replicate"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pools"
)

const (
	// feedInterval is how soon a server is listened to that says another place than before. One that came up is at once.
	feedInterval = 500 * time.Millisecond
	// restoreTime bounds the reading of a snapshot before a feed connects.
	restoreTime = 5 * time.Second
)

// feeds listens to the KV events of every server that publishes them: it follows the
// fleet, and opens and closes what the servers of the moment call for.
type feeds struct {
	fleet  *pools.Fleet
	index  *kvstate.Index
	onKeys func(keys map[string]uint64) // receives the compatibility keys of the servers that are followed
	hub    *zmqsub.Hub
	shared *replicate.Shared // nil: this gateway is alone
	redis  RedisConfig
	log    *slog.Logger
	open   map[kvstate.SourceID]*feed
	// lastKeys are those under which servers were followed last.
	lastKeys     map[kvstate.SourceID]uint64
	reportedKeys map[string]uint64           // by server
	refused      map[kvstate.SourceID]string // why a feed cannot be opened, which is tried all the time and said once
}

// feed is one source that is listened to.
type feed struct {
	want   feedSpec
	source *kvstate.Source
	stop   func()
}

// feedSpec is what a feed is opened for; when it changes the feed is opened anew.
type feedSpec struct {
	id    kvstate.SourceID
	model string
	feed  zmqsub.Feed
	store string // "": none is known of
	key   uint64 // compatibility key: what a server of other weights reported does not hold for this one
	mark  uint64 // of the secret that keys the hashes of what it holds
}

// run follows the fleet until the context ends.
func (f *feeds) run(ctx context.Context) {
	f.open, f.lastKeys = make(map[kvstate.SourceID]*feed), make(map[kvstate.SourceID]uint64)
	f.refused = make(map[kvstate.SourceID]string)
	changed, stop := f.fleet.StateChanges()
	defer stop()
	tick := time.NewTicker(feedInterval)
	defer tick.Stop()
	for {
		f.follow(ctx)
		select {
		case <-ctx.Done():
			for id := range f.open {
				f.close(id)
			}
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// follow closes feeds that are not wanted any more and opens those that are missing.
func (f *feeds) follow(ctx context.Context) {
	wanted, mark := make(map[kvstate.SourceID]feedSpec), f.index.SecretMark()
	for _, s := range f.fleet.Servers() {
		model := baseModel(s.Health())
		at := s.Published()
		if at.Events == "" || model == "" {
			continue
		}
		for rank, feed := range feedsOf(at) {
			id := kvstate.SourceID{Server: s.ID(), Rank: rank}
			wanted[id] = feedSpec{id, model, feed, storeOf(s), s.CompatibilityKey(), mark}
		}
	}
	alike := boundAlike(wanted)
	for id, have := range f.open {
		if wanted[id] != have.want || alike[id] != "" {
			f.close(id)
		}
	}
	unwanted := func(id kvstate.SourceID) bool { _, is := wanted[id]; return !is }
	maps.DeleteFunc(f.lastKeys, func(id kvstate.SourceID, _ uint64) bool { return unwanted(id) })
	maps.DeleteFunc(f.refused, func(id kvstate.SourceID, _ string) bool { return unwanted(id) })
	for id, want := range wanted {
		switch {
		case f.open[id] != nil, ctx.Err() != nil:
		case alike[id] != "":
			f.refuse(id, fmt.Sprintf("%s is also for %s: %s", want.feed.Events, alike[id], oneBoundAddress))
		default:
			f.start(ctx, want)
		}
	}
	f.reportKeys()
}

// feedsOf is where the ranks of an engine publish their KV events, by rank.
func feedsOf(at pools.Published) []zmqsub.Feed {
	feeds := make([]zmqsub.Feed, at.Ranks)
	for rank := range feeds {
		feeds[rank] = zmqsub.Feed{Events: at.Events, Replay: at.Replay, Bind: at.Bind, Topic: at.Topic}.ForRank(rank)
	}
	return feeds
}

// oneEventAddress is the warning of two servers that are listened to at one address.
const oneEventAddress = "two servers have one address of KV events, and what one of them holds is believed of both: give each its own (events)"

// alsoAt is another server that is listened to at the address of a feed, "" where there is none. As of several on one
// host with one port for all, what the one engine there holds would be believed of each.
func (f *feeds) alsoAt(want feedSpec) string {
	for id, have := range f.open {
		if id != want.id && !want.feed.Bind && have.want.feed.Events == want.feed.Events {
			return id.Server
		}
	}
	return ""
}

// oneBoundAddress is the error of two engines in connect mode that come to one address.
const oneBoundAddress = "engines that connect to one address of KV events cannot be told apart: give each its own port (events), or let them bind theirs"

// boundAlike names, of each source whose engine comes to an address to which that of another source comes too, another
// one.
func boundAlike(wanted map[kvstate.SourceID]feedSpec) map[kvstate.SourceID]string {
	first, alike := make(map[string]kvstate.SourceID), make(map[kvstate.SourceID]string)
	for id, want := range wanted {
		at := want.feed.Events
		if !want.feed.Bind || hasAnyPort(at) {
			continue
		}
		if other, taken := first[at]; taken {
			alike[id], alike[other] = other.String(), id.String()
			continue
		}
		first[at] = id
	}
	return alike
}

// hasAnyPort reports whether whoever binds an address gets a port of its own.
func hasAnyPort(address string) bool {
	return strings.HasSuffix(address, ":*") || strings.HasSuffix(address, ":0")
}

// storeOf names a server's store in the index, "" where it has none that is known of. What one
// engine puts there, one of other weights or another layout cannot load.
func storeOf(s *pools.Server) string {
	name := s.Store()
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s of %x", name, s.CompatibilityKey())
}

// reportKeys reports the compatibility keys of the servers that are followed, if they changed.
func (f *feeds) reportKeys() {
	now := make(map[string]uint64, len(f.open))
	for id, have := range f.open {
		now[id.Server] = have.want.key
	}
	if !maps.Equal(now, f.reportedKeys) {
		f.onKeys(now)
		f.reportedKeys = now
	}
}

// baseModel is the model that a server's KV is of, "" while it is not known.
func baseModel(h *pools.Health) string {
	for _, m := range h.Models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}

// start listens to a source. What cannot be opened is tried again.
func (f *feeds) start(ctx context.Context, want feedSpec) {
	source, err := f.index.Open(kvstate.Spec{
		SourceID: want.id, Model: want.model, Store: want.store, Replays: want.feed.Replay != "",
	})
	if err != nil {
		f.log.Error("cannot keep a server's KV", "server", want.id.Server, "rank", want.id.Rank, "error", err.Error())
		return
	}
	// A snapshot is of the server as it was when this gateway first saw it, or before.
	known, again := f.lastKeys[want.id]
	f.lastKeys[want.id] = want.key
	if f.shared != nil && (!again || known == want.key) {
		restore, cancel := context.WithTimeout(ctx, restoreTime)
		f.shared.Restore(restore, source)
		cancel()
	}
	stop, err := f.listen(ctx, source, want)
	if err != nil {
		f.refuse(want.id, err.Error())
		source.Close()
		return
	}
	delete(f.refused, want.id)
	if other := f.alsoAt(want); other != "" {
		f.log.Warn(oneEventAddress, "address", want.feed.Events, "servers", other+", "+want.id.Server)
	}
	f.log.Info("listening to KV events", "server", want.id.Server, "rank", want.id.Rank, "model", want.model)
	f.open[want.id] = &feed{want: want, source: source, stop: stop}
}

// refuse says once why a source is not listened to.
func (f *feeds) refuse(id kvstate.SourceID, why string) {
	if f.refused[id] != why {
		f.refused[id] = why
		f.log.Error("cannot listen to a server's KV events", "server", id.Server, "rank", id.Rank, "error", why)
	}
}

// listen connects to an engine in bind mode. One in connect mode is received by one replica,
// which the others follow.
func (f *feeds) listen(ctx context.Context, source *kvstate.Source, want feedSpec) (stop func(), err error) {
	connect := func() (func(), error) {
		sub, err := f.hub.Subscribe(source, want.feed)
		if err != nil {
			return nil, err
		}
		return sub.Close, nil
	}
	if !want.feed.Bind || f.shared == nil {
		return connect()
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.shared.Follow(ctx, source, f.redis.advertised(want.feed.Events), connect)
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

func (f *feeds) close(id kvstate.SourceID) {
	f.open[id].stop()
	f.open[id].source.Close()
	delete(f.open, id)
}

// newFeeds makes the feeds of a node.
func (n *Node) newFeeds() (*feeds, error) {
	hub, err := zmqsub.NewHub(zmqsub.Default(), n.log)
	if err != nil {
		return nil, err
	}
	f := &feeds{fleet: n.fleet, index: n.locality.Index, onKeys: n.locality.SetSourceClasses, hub: hub, redis: n.cfg.redis, log: n.log}
	if n.sharing.redis != nil {
		f.shared = replicate.New(n.locality.Index, n.sharing.redis, n.cfg.redis.Prefix, n.instance, n.log)
	}
	return f, nil
}
