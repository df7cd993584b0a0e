package serving

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"text/tabwriter"

	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/address"
	"github.com/tandem-gateway/tandem/pools/health"
	"github.com/tandem-gateway/tandem/pools/load"
)

// checkedServer is what check found of one server.
type checkedServer struct {
	spec   pools.Spec
	probed health.Probed // meaningful without down
	down   error
	scheme string // what to do where it speaks as its URL does not say
	events error  // of its KV events: what does not answer at their addresses
	orca   error  // of the OpenRcaService that its configuration names
	hosts  string // from which its hand-offs may come; empty: it makes none
	places []netip.AddrPort
}

// checkedAtOnce is how many servers are asked at a time: of thousands at once healthy ones would not answer in time,
// for this machine's own load.
const checkedAtOnce = 128

// askServers asks all servers, checkedAtOnce at a time. What engines contradict is logged to out.
func askServers(ctx context.Context, cfg config, specs []pools.Spec, out io.Writer) ([]checkedServer, error) {
	bare, err := cfg.engines.transport(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	key, err := readSecret("engine-key-file", cfg.engines.key)
	if err != nil {
		return nil, err
	}
	transport := withEngineKey(withAgent(bare, cfg.fleetName()), key)
	log := slog.New(slog.NewTextHandler(out, nil))
	answers := make([]checkedServer, len(specs))
	var asked sync.WaitGroup
	free := make(chan struct{}, checkedAtOnce)
	for i, spec := range specs {
		answer := &answers[i]
		answer.spec = spec
		free <- struct{}{}
		asked.Go(func() {
			defer func() { <-free }()
			if answer.probed, answer.down = health.Probe(ctx, spec, cfg.pools.Config, transport, log); answer.down == nil {
				answer.events = tryEvents(&cfg, answer.probed.Published())
			} else if !health.AsksForKey(answer.down) {
				answer.scheme = wrongScheme(ctx, spec.URL, cfg.pools.ProbeTimeout)
			}
		})
		asked.Go(func() { answer.places = placesOf(ctx, spec.URL) })
		if spec.ORCA != "" {
			asked.Go(func() { answer.orca = load.TryORCA(ctx, spec.ORCA, cfg.pools.ProbeTimeout) })
		}
		if spec.Role.Serves(pools.Prefill) {
			asked.Go(func() { answer.hosts = address.Describe(ctx, spec.KVHosts()) })
		}
	}
	asked.Wait()
	return answers, nil
}

// tryEvents connects to where a server publishes its KV events, for each of its ranks.
func tryEvents(cfg *config, at pools.Published) error {
	if at.Events == "" || at.Bind {
		return nil
	}
	for _, feed := range feedsOf(at) {
		if err := zmqsub.Try(feed, cfg.pools.ProbeTimeout); err != nil {
			return err
		}
	}
	return nil
}

func printAnswers(out io.Writer, answers []checkedServer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SERVER\tROLE\tSTATE\tCONNECTOR\tMODELS\tENGINE\tKV EVENTS\tLOAD") // Flush reports
	for i := range answers {
		_, _ = fmt.Fprintln(table, answers[i].line())
	}
	return table.Flush()
}

// printHosts says from where the hand-offs of prefill servers may come, and what becomes of
// others.
func printHosts(out io.Writer, answers []checkedServer, strict bool) error {
	foreign := "others are counted and warned of (strict-handoffs is off)"
	if strict {
		foreign = "others are withheld from decode (strict-handoffs is on)"
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	some := false
	for i := range answers {
		a := &answers[i]
		if a.hosts == "" {
			continue
		}
		if !some {
			_, _ = fmt.Fprintf(table, "\nHosts from which hand-offs are expected; %s\n", foreign) // Flush reports
		}
		some = true
		_, _ = fmt.Fprintf(table, "%s\t%s\n", a.spec.ID(), a.hosts)
	}
	return table.Flush()
}

// line is the server's line of the table.
func (c *checkedServer) line() string {
	if c.down != nil {
		return fmt.Sprintf("%s\t%s\tDOWN\t\t\t\t\t%v", c.spec.ID(), c.spec.Role, c.down) // as many cells as the head: fewer would part the table
	}
	return fmt.Sprintf("%s\t%s\tup\t%s\t%s\t%s\t%s\t%s", c.spec.ID(), c.spec.Role, c.probed.Connector(),
		modelNames(c.probed.Health().Models), describeEngine(c.probed.Identity()), c.describeEvents(), describeLoad(c.probed.Load))
}

func (c *checkedServer) describeEvents() string {
	switch at := c.probed.Published(); {
	case at.Events == "":
		return "none"
	case at.Bind:
		return "the engine is in connect mode, not tried"
	case c.events != nil:
		return "NOT RECEIVED"
	case at.Replay == "":
		return "received"
	}
	return "received, replayed"
}
