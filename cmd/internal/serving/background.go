package serving

import (
	"context"
	"sync"
)

// background runs what works beside the requests until the context ends: listening to
// KV events, and what goes through Redis.
func (n *Node) background(ctx context.Context) (done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var parts sync.WaitGroup
		parts.Go(func() { n.feeds.run(ctx) })
		parts.Go(func() { n.discovery.run(ctx, n.log) })
		parts.Go(func() { n.followSecrets(ctx) })
		parts.Go(func() { n.fleet.WatchPairs(ctx) })
		parts.Go(func() { n.planner.Run(ctx) })
		if n.orchestrator.Binder.Late != nil {
			parts.Go(func() { n.orchestrator.Binder.Late.Run(ctx) })
		}
		parts.Go(func() { n.sharing.run(ctx) })
		if n.feeds.shared != nil {
			parts.Go(func() { n.feeds.shared.Run(ctx, n.cfg.kv.snapshots) })
		}
		parts.Wait()
		if n.sharing.redis != nil {
			_ = n.sharing.redis.Close() // nothing is left to say
		}
	}()
	return ended
}
