package serving

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// pushedInterval is how soon an engine that says where it pushes its load is listened to.
const pushedInterval = time.Second

// takePushedLoad has the load taken in that engines push (SGLang's --load-publish-endpoint), of each
// server of a fleet that says where. Polling goes on beside it: what is newer counts.
func takePushedLoad(fleet *pools.Fleet, hub *zmqsub.Hub, log *slog.Logger) {
	fleet.Watch(func() func(context.Context, *pools.Server) {
		return func(ctx context.Context, s *pools.Server) {
			pushedLoad{s, hub, log.With("server", s.ID())}.run(ctx)
		}
	})
}

// pushedLoad is that of one server.
type pushedLoad struct {
	server *pools.Server
	hub    *zmqsub.Hub
	log    *slog.Logger
}

// loadFeed is where a server's ranks push it.
type loadFeed struct {
	zmqsub.Feed
	ranks int
}

// loadFeedOf is where it is pushed; the zero feed where it is not.
func loadFeedOf(at pools.Published) loadFeed {
	if at.Load == "" {
		return loadFeed{}
	}
	return loadFeed{zmqsub.Feed{Events: at.Load, Topic: at.LoadTopic}, at.Ranks}
}

// run listens where the engine says, anew when it says another place, until the context ends.
func (p pushedLoad) run(ctx context.Context) {
	tick := time.NewTicker(pushedInterval)
	defer tick.Stop()
	var open loadFeed
	stop := func() {}
	defer func() { stop() }()
	for {
		if want := loadFeedOf(p.server.Published()); want != open {
			stop()
			open, stop = want, p.listen(ctx, want)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// listen receives what all ranks push until stop, which waits for the end.
func (p pushedLoad) listen(ctx context.Context, from loadFeed) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var ranks sync.WaitGroup
	stop = func() {
		cancel()
		ranks.Wait()
	}
	if from.Events == "" {
		return stop
	}
	for rank := range from.ranks {
		at := from.ForRank(rank)
		loads, err := p.hub.ListenLoads(at)
		if err != nil {
			p.log.Error("cannot listen to a server's load, which is polled", "rank", rank, "error", err.Error())
			return stop
		}
		ranks.Go(func() {
			loads.Run(ctx, func(payload []byte) {
				pushed, err := load.ParsePushed(payload)
				p.server.RecordPushedLoad(rank, from.ranks, pushed, err, time.Now())
			})
		})
	}
	p.log.Info("listening to pushed load", "address", from.Events, "ranks", from.ranks)
	return stop
}
