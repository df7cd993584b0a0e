package health

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Watch has the servers of a fleet probed from its first Apply on. The transport carries
// probes, scrapes and probe requests.
func Watch(fleet *pools.Fleet, transport http.RoundTripper, log *slog.Logger) {
	cfg := fleet.Config()
	pages, addresses := load.NewPages(cfg.LoadTables), newRankAddresses(cfg.ProbeInterval)
	fleet.Watch(func() func(context.Context, *pools.Server) {
		slow := newSlowHealth()
		return func(ctx context.Context, s *pools.Server) {
			log := log.With("server", s.ID())
			e := engine{server: s, transport: transport} // each request has a time limit of its own
			var parts sync.WaitGroup
			parts.Go(func() {
				s.AwaitAddresses(ctx)
				p := newProber(e, slow, cfg, pages, log)
				defer addresses.join(p)()
				p.run(ctx)
			})
			parts.Go(func() { slow.run(ctx, e) })
			for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
				if s.Role.Serves(leg) {
					p := probeRequester{engine: e, leg: leg, cfg: cfg, log: log}
					parts.Go(func() { p.run(ctx) })
				}
			}
			parts.Wait()
		}
	})
}
