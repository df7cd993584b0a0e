package serving

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale/advise"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/replay"
	"github.com/tandem-gateway/tandem/pools"
)

// ReplayOptions are what a replay is told beside a configuration.
type ReplayOptions struct {
	Log  string // file: Mooncake's JSONL or an access log, as advise.ReadRows reads them
	Each bool   // print each request, too
}

// Replay reads a configuration as Command does, and prints where the requests of a log would go on its
// servers. It asks no server, and sends nothing.
func Replay(file string, flags *pflag.FlagSet, opts ReplayOptions, out io.Writer) error {
	cfg, err := loadConfig(file, flags)
	if err != nil {
		return err
	}
	fleet, err := cfg.replayFleet()
	if err != nil {
		return err
	}
	log, err := os.Open(opts.Log)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer log.Close()
	rows, leftOut, err := advise.ReadRows(log)
	if err != nil {
		return fmt.Errorf("log %s: %w", opts.Log, err)
	}
	p := newReplayPrinter(fleet, opts.Each, out)
	requests := make([]replay.Request, 0, len(rows))
	for _, row := range rows {
		requests = append(requests, replay.Request{At: row.At, Prompt: row.Prompt, Output: row.Output, Blocks: row.Blocks})
	}
	if r := replay.New(fleet); cfg.pd.binding == pd.Late {
		turns := order.DefaultConfig()
		turns.Patience = cfg.pd.queue.MaxWait
		r.Late(requests, turns, p.add)
	} else {
		for i := range requests {
			placed, ok := r.Place(&requests[i])
			p.add(&requests[i], placed, ok)
		}
	}
	return p.finish(leftOut)
}

// replayPrinter prints what comes of a replay.
type replayPrinter struct {
	out    io.Writer
	each   bool
	lines  *tabwriter.Writer // of each request
	report *replay.Report
}

func newReplayPrinter(fleet replay.Fleet, each bool, out io.Writer) *replayPrinter {
	p := &replayPrinter{out: out, each: each, lines: tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight), report: replay.NewReport(fleet)}
	if each {
		_, _ = fmt.Fprintln(p.lines, "at\tprompt\tcached\tanswer\tprefill\tdecode\twaited\tfirst token\t") // Flush has the error
	}
	return p
}

// add takes in where a request went, with ok false that it went nowhere.
func (p *replayPrinter) add(req *replay.Request, placed replay.Placement, ok bool) {
	p.report.Add(req, placed, ok)
	waited := placed.Waited.Round(time.Millisecond)
	switch {
	case p.each && ok:
		_, _ = fmt.Fprintf(p.lines, "%v\t%d\t%d\t%d\t%s\t%s\t%v\t%v\t\n", req.At, req.Prompt, placed.Cached, req.Output,
			cmp.Or(placed.Prefill, "-"), placed.Decode, waited, placed.TTFT.Round(time.Millisecond))
	case p.each:
		_, _ = fmt.Fprintf(p.lines, "%v\t%d\t-\t%d\t-\t-\t%v\t-\t\n", req.At, req.Prompt, req.Output, waited)
	}
}

// finish prints it all, and how many lines of the log are left out.
func (p *replayPrinter) finish(leftOut int) error {
	if p.each {
		_, _ = fmt.Fprintln(p.lines)
	}
	if err := p.lines.Flush(); err != nil {
		return err
	}
	if err := p.report.WriteTable(p.out); err != nil {
		return err
	}
	if leftOut == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.out, "%d lines without tokens are left out\n", leftOut)
	return err
}

// replayFleet is the servers that the configuration names by address: as fast as is assumed of new ones,
// or with a capacity as it says, with as much KV.
func (c *config) replayFleet() (replay.Fleet, error) {
	specs := c.specs()
	if len(specs) == 0 {
		return replay.Fleet{}, errors.New("a replay needs servers that are named by address: give --prefill and --decode, or a file that lists them")
	}
	kvTokens := 0
	if c.scaling.capacity != "" {
		kvTokens = c.scaling.Prior.KVTokens
	}
	f := replay.Fleet{Model: c.cost.Model, Links: c.cost.links, Demand: cost.Demand{
		TTFT: c.pd.TTFT.Of("", ""), ITL: c.pd.ITL.Of("", ""), Objective: c.pd.Objective.Models.Of("", ""),
	}}
	classes := make(map[[3]string]uint64) // of servers whose KV is alike
	for _, s := range specs {
		kind := [3]string{s.Connector, s.Weights, s.Layout}
		if classes[kind] == 0 {
			classes[kind] = uint64(len(classes) + 1)
		}
		f.Servers = append(f.Servers, replay.Server{
			ID: s.ID(), Prefills: s.Role.Serves(pools.Prefill), Decodes: s.Role.Serves(pools.Decode), Aggregated: s.Connector == "aggregated",
			Class: classes[kind], Topology: cost.Topology{Host: s.Host, Rack: s.Rack, Zone: s.Zone}, Prefill: c.pools.Prefill, Step: c.pools.Step, KVTokens: kvTokens,
		})
	}
	return f, nil
}
