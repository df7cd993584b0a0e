package health

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/tandem-gateway/tandem/pools"
)

// Watch has the servers of a fleet probed from its first Apply on. The transport carries
// probes, scrapes and probe requests.
func Watch(fleet *pools.Fleet, transport http.RoundTripper, log *slog.Logger) {
	fleet.Watch(func() func(context.Context, *pools.Server) {
		slow := newSlowHealth()
		return func(ctx context.Context, s *pools.Server) {
			watch(ctx, s, slow, fleet.Config(), transport, log.With("server", s.ID()))
		}
	})
}

// watch probes one server until the context ends.
func watch(ctx context.Context, s *pools.Server, slow *slowHealth, cfg pools.Config, transport http.RoundTripper, log *slog.Logger) {
	patient := &http.Client{Transport: transport, CheckRedirect: noRedirect} // each request has a time limit of its own
	var parts sync.WaitGroup
	parts.Go(func() {
		s.AwaitAddresses(ctx)
		newProber(s, slow, cfg, transport, log).run(ctx)
	})
	parts.Go(func() { slow.run(ctx, engine{s, patient}) })
	for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
		if s.Role.Serves(leg) {
			p := probeRequester{engine: engine{s, patient}, leg: leg, cfg: cfg, log: log}
			parts.Go(func() { p.run(ctx) })
		}
	}
	parts.Wait()
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
