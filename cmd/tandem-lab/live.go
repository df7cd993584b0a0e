package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/compare"
	"github.com/tandem-gateway/tandem/loadtest/policy"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/pd/cost"
)

const liveHelp = `Compare the gateway's own ways to choose on running processes: simulated engines in
racks with slow links between them, the gateway, and a slice of a trace. Beside each
stands what the simulator (tandem-lab sim) predicts for the same cluster and load.

It needs the machine for itself: what the gateway, the engines and the load cost here
is not scaled as the engines' time is.`

func liveCommand() *cobra.Command {
	cfg := compare.Config{Limit: 600, Rounds: 2, Shape: compare.DefaultShape()}
	var jsonPath string
	var ways []string
	cmd := &cobra.Command{
		Use:     "live",
		Short:   "Compare ways to choose on running simulated engines",
		Long:    liveHelp,
		Example: "  tandem-lab live\n  tandem-lab live --way random,late --limit 200 --rounds 1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Ways, err = findWays(ways); err != nil {
				return err
			}
			if cfg.From, err = process.Find(); err != nil {
				return err
			}
			return runLive(cmd, cfg, jsonPath)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.Trace, "trace", conversationTrace, "Mooncake JSONL `file` to replay")
	f.IntVar(&cfg.Limit, "limit", cfg.Limit, "requests of it")
	f.IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "runs of each way, by turns")
	f.StringSliceVar(&ways, "way", []string{"all"}, "all, or parts of `names`")
	f.Float64Var(&cfg.Shape.Scale, "time-scale", cfg.Shape.Scale, "of the engines' time")
	f.Float64Var(&cfg.Shape.Speedup, "speedup", cfg.Shape.Speedup, "of the trace's arrivals, in the engines' time")
	f.StringVar(&jsonPath, "json", "", "write the figures as JSON to this `file`")
	f.StringVar(&cfg.LogPath, "log", "", "write what the processes say to this `file`")
	return cmd
}

func findWays(names []string) (found []compare.Way, err error) {
	for _, way := range compare.Ways() {
		for _, name := range names {
			if name == "all" || strings.Contains(way.Name, name) {
				found = append(found, way)
				break
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no way is named like %s", strings.Join(names, ", "))
	}
	return found, nil
}

func runLive(cmd *cobra.Command, cfg compare.Config, jsonPath string) error {
	files, err := output.Create(jsonPath)
	if err != nil {
		return err
	}
	report, err := compare.Run(cmd.Context(), cfg, func(done, all int, what string) {
		_, _ = fmt.Fprintf(os.Stderr, "\r%d of %d runs  %-24s", done, all, what)
	})
	_, _ = fmt.Fprintln(os.Stderr)
	if err == nil {
		err = simulate(cmd.Context(), cfg, report)
	}
	if err != nil {
		return errors.Join(err, files.Close())
	}
	if err := errors.Join(report.WriteTable(cmd.OutOrStdout()), report.WriteJSON(files[0]), files.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for _, pair := range report.Disorder() {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "other than simulated: %s is not faster than %s\n", pair[0], pair[1])
	}
	return nil
}

// simulate asks the simulator for the same cluster and load.
func simulate(ctx context.Context, cfg compare.Config, report *compare.Report) error {
	scenario, err := policy.ParseScenario(compare.Scenario(&cfg.Shape))
	if err != nil {
		return err
	}
	policies, err := simulated(report.Ways)
	if err != nil {
		return err
	}
	predicted, err := policy.Compare(ctx, policy.Config{
		Traces: []string{cfg.Trace}, Limit: cfg.Limit, Scenarios: []*policy.Scenario{scenario}, Policies: policies,
		Seeds: 5, Parallel: runtime.GOMAXPROCS(0),
	}, func(int, int, *policy.Outcome) {})
	if err != nil {
		return err
	}
	for i := range report.Ways {
		for _, p := range predicted.Scenarios[0].Policies {
			if p.Name == report.Ways[i].Simulated {
				report.Ways[i].SimulatedTTFT = p.Metrics["ttft_mean_s"].Mean
			}
		}
	}
	return nil
}

// simulated are the policies of the simulator that do the same as some ways.
func simulated(ways []compare.Result) (policies []*policy.Policy, err error) {
	var names []string
	for i := range ways {
		rule, isRule := strings.CutPrefix(ways[i].Simulated, "gateway-")
		switch {
		case isRule:
			policies = append(policies, policy.ByRule(cost.Rule(rule)))
		case ways[i].Simulated != "":
			names = append(names, ways[i].Simulated)
		}
	}
	found, err := policy.FindPolicies(names)
	return append(policies, found...), err
}
