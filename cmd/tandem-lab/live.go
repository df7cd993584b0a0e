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
	cfg.Load = "conversations"
	cmd := &cobra.Command{
		Use:     "live",
		Short:   "Compare ways to choose on running simulated engines",
		Long:    liveHelp,
		Example: "  tandem-lab live\n  tandem-lab live --way random,late --limit 200 --rounds 1\n  tandem-lab live --load agents --way late --rounds 3",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Ways, err = findWays(ways); err != nil {
				return err
			}
			if cfg.From, err = process.Find(); err != nil {
				return err
			}
			trace, remove, err := liveTrace(&cfg)
			if err != nil {
				return err
			}
			defer remove()
			cfg.Trace = trace
			return runLive(cmd, cfg, jsonPath)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.Load, "load", cfg.Load, "conversations, of --trace, or agents: sessions whose prompts begin with the same 20,480 tokens")
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

// liveAgents are sessions of agents at a rate that the bodies' size allows on two cores: some eight
// turns a second.
func liveAgents(s *compare.Shape) *policy.Agents {
	return &policy.Agents{
		Seed: 1, Products: 3, SharedTokens: 20480, Sessions: 400, Rate: 0.8 / s.Speedup, Turns: 12,
		TurnSeconds: policy.Bounds{Least: 2 * s.Speedup, Most: 3 * s.Speedup}, TurnTokens: policy.Bounds{Least: 200, Most: 3000},
		AnswerTokens: policy.Bounds{Least: 50, Most: 150},
	}
}

// liveTrace is the file that the load is in, and what removes it again where it was generated.
func liveTrace(cfg *compare.Config) (path string, remove func(), err error) {
	switch cfg.Load {
	case "conversations":
		return cfg.Trace, func() {}, nil
	case "agents":
	default:
		return "", nil, fmt.Errorf("load %q: want conversations or agents", cfg.Load)
	}
	trace, err := liveAgents(&cfg.Shape).Trace(cfg.Load, cfg.Limit)
	if err != nil {
		return "", nil, err
	}
	f, err := os.CreateTemp("", "tandem-agents-*.jsonl")
	if err != nil {
		return "", nil, fmt.Errorf("write the trace: %w", err)
	}
	remove = func() { _ = os.Remove(f.Name()) }
	if err := errors.Join(trace.Write(f), f.Close()); err != nil {
		remove()
		return "", nil, err
	}
	return f.Name(), remove, nil
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
				report.Ways[i].Predicted = &compare.Predicted{
					TTFT: p.Metrics["ttft_mean_s"].Mean, TTFT99: p.Metrics["ttft_p99_s"].Mean, Cached: p.Metrics["hit_share"].Mean,
				}
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
