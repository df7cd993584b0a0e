package standby

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// idleInterval is how often idle adapters and idle servers are looked for.
const idleInterval = time.Second

// Watch has the servers of a fleet made ready when requests ask for it, where the
// configuration names adapters, and where servers share GPUs. The arbiter decides which of
// several gateways manages those; nil: this one alone.
func Watch(fleet *pools.Fleet, arbiter *Arbiter, transport http.RoundTripper, log *slog.Logger) {
	var held occupancy
	cfg := fleet.Config()
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect} // each order has a time limit of its own
	fleet.Watch(func() func(context.Context, *pools.Server) {
		return func(ctx context.Context, s *pools.Server) {
			if len(cfg.Adapters.Directory) == 0 && s.GPUs == "" {
				s.CloseStandby()
				return
			}
			s.OpenStandby()
			e, log := engine{s, client}, log.With("server", s.ID())
			run(ctx, &adapterManager{engine: e, cfg: cfg.Adapters, log: log},
				&wakeController{engine: e, cfg: cfg.Sleep, arbiter: arbiter, held: &held, log: log})
		}
	})
}

// run does what requests ask of one server until the context ends, one thing after the other:
// an engine does not load an adapter while it falls asleep. What it is at then is left to who follows the server next.
func run(ctx context.Context, adapters *adapterManager, controller *wakeController) {
	loads, wakes := adapters.server.LoadRequests(), controller.server.WakeRequests()
	tick := time.NewTicker(idleInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wakes.Due():
			if err := controller.wake(ctx); ctx.Err() == nil {
				wakes.Finish(err, refusal(err), time.Now())
			}
		case <-loads.Due():
			for name := loads.Next(); name != "" && ctx.Err() == nil; name = loads.Next() {
				if err := adapters.load(ctx, name); ctx.Err() == nil {
					loads.Finish(name, err, refusal(err), time.Now())
				}
			}
		case <-tick.C:
			adapters.unloadIdle(ctx, time.Now())
			controller.sleepIdle(ctx, time.Now())
		}
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
