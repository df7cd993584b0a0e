package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/autoscale/calibrate"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/cmd/internal/output"
)

const calibrateHelp = `Measure from outside what one server can do, with real requests: the time of a
prefill by length, the time of a decode step by batch and context, the largest
concurrency within an ITL, the room for KV.

The server should be otherwise idle. What is measured goes to a file that serve
(--capacity) starts its beliefs from, and that sim --autoscale and the planner read.`

func calibrateCommand() *cobra.Command {
	cfg := calibrate.DefaultConfig()
	out, svg := "capacity.json", ""
	cmd := &cobra.Command{
		Use:     "calibrate",
		Short:   "Measure what one server can do, for serve, sim and the planner",
		Long:    calibrateHelp,
		Example: "  tandem calibrate --server http://a:8000 --out h100.json --svg h100.svg\n  tandem serve --capacity h100.json --prefill http://a:8000 --decode http://b:8000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Key = os.Getenv("TANDEM_ENGINE_KEY")
			return runCalibrate(cmd, cfg, out, svg)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.Server, "server", "", "`URL` of the engine; its key, if it asks for one, is read from TANDEM_ENGINE_KEY")
	f.StringVar(&cfg.Model, "model", "", "model `name` (default: the first of /v1/models)")
	f.IntVar(&cfg.Budget, "budget", cfg.Budget, "`tokens` to spend, of prompts and answers")
	f.IntVar(&cfg.KVTokens, "kv-tokens", 0, "`tokens` of KV that the server holds; 0: as its metrics report")
	f.DurationVar(&cfg.ITL, "itl", cfg.ITL, "`time` between tokens within which the largest concurrency is looked for; 0: it is not")
	f.IntVar(&cfg.Context, "context", cfg.Context, "`tokens` of each sequence there")
	f.StringVar(&out, "out", out, "write the capacity to this `file`")
	f.StringVar(&svg, "svg", "", "draw the curves to this `file`")
	if err := cmd.MarkFlagRequired("server"); err != nil {
		panic(err) // it is defined above
	}
	return cmd
}

func runCalibrate(cmd *cobra.Command, cfg calibrate.Config, out, svg string) error {
	files, err := output.Create(out, svg)
	if err != nil {
		return err
	}
	show, done := showBudget(os.Stderr)
	c, err := calibrate.Run(cmd.Context(), cfg, show)
	done()
	if err != nil {
		return errors.Join(err, files.Close())
	}
	if err := errors.Join(c.Write(files[0]), calibrate.WriteSVG(files[1], c), files.Close()); err != nil {
		return fmt.Errorf("write the capacity: %w", err)
	}
	return printCapacity(cmd.OutOrStdout(), c, cfg)
}

func printCapacity(out io.Writer, c *sizing.Capacity, cfg calibrate.Config) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "model\t%s\n", c.Model)
	for _, p := range c.PrefillPoints {
		fmt.Fprintf(w, "prefill of %d tokens\t%.1f ms, %.0f tokens/s\n", p.Tokens, 1e3*p.Seconds, float64(p.Tokens)/p.Seconds)
	}
	fmt.Fprintf(w, "smallest decode step\t%.1f ms\n", 1e3*c.MinimumStep().Seconds())
	for _, p := range c.StepPoints {
		fmt.Fprintf(w, "step of %d sequences, %d tokens of KV\t%.1f ms\n", p.Sequences, p.KVTokens, 1e3*p.Seconds)
	}
	fmt.Fprintf(w, "room for KV\t%d tokens\n", c.KVTokens)
	switch {
	case c.Largest != nil && c.Lacked > 0:
		fmt.Fprintf(w, "largest concurrency\tsome %d sequences of %d tokens within %v; a look closer wants --budget %d\n", c.Largest.Sequences, c.Largest.Context, cfg.ITL, cfg.Budget+c.Lacked)
	case c.Largest != nil:
		fmt.Fprintf(w, "largest concurrency\t%d sequences of %d tokens within %v\n", c.Largest.Sequences, c.Largest.Context, cfg.ITL)
	case c.Lacked > 0:
		fmt.Fprintf(w, "largest concurrency\tnot found: a look at sequences of %d tokens wants --budget %d\n", cfg.Context, cfg.Budget+c.Lacked)
	case cfg.ITL > 0:
		fmt.Fprintf(w, "largest concurrency\tnot found: no batch of sequences of %d tokens that was tried ran at once within %v, or one is more than the model or half of the KV cache takes\n", cfg.Context, cfg.ITL)
	}
	return w.Flush()
}

// showBudget shows how much of the budget is spent: in one line that changes on a terminal, in
// a line every five seconds elsewhere. done ends the line.
func showBudget(out *os.File) (show calibrate.Progress, done func()) {
	every, form, end := 5*time.Second, "%d of %d tokens, now %s\n", ""
	if isatty.IsTerminal(out.Fd()) {
		every, form, end = 0, "\r\x1b[K%d of %d tokens, now %s", "\n" // over the line before
	}
	next := time.Now()
	show = func(spent, budget int, what string) {
		if time.Now().Before(next) {
			return
		}
		next = time.Now().Add(every)
		fmt.Fprintf(out, form, spent, budget, what)
	}
	return show, func() { fmt.Fprint(out, end) }
}
