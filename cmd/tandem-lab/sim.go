package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/policy"
	"github.com/tandem-gateway/tandem/loadtest/progress"
	"github.com/tandem-gateway/tandem/loadtest/scaling"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
)

const simHelp = `Replay a trace against a model of a prefill/decode cluster and compare policies.

The model is of discrete events in virtual time: prefill servers that work in
steps with a token budget, decode batches with KV room, block caches on both,
transfers that share NICs and rack uplinks. What a gateway cannot know is delayed
or predicted for every policy alike. Policies beside Tandem's are written from
their published rules; the report names the sources.

With --optimum the policies serve a few requests each on a small cluster, and are
held against the least mean time to the first token that any schedule has there.

With --autoscale the policies are of scaling: a coarser model of both pools over
hours, with Kubernetes' HPA between a policy and its pods.

A scenario is the name of a shipped one or a YAML file. A request of the same seed
arrives at the same time and is as hard under every policy.`

const simExample = `  tandem-lab sim --trace loadtest/traces/mooncake_conversation.jsonl
  tandem-lab sim --trace FILE --scenario B,C --policy dynamo,tandem-late --seeds 1
  tandem-lab sim --trace mixed --scenario B,C,G --first-seed 101
  tandem-lab sim --trace FILE --json sim.json --report sim.html
  tandem-lab sim --optimum 400 --first-seed 1001
  tandem-lab sim --autoscale --scenario study --cold-start 2m --report scaling.html`

// conversationTrace is the trace that comes with the project.
const conversationTrace = "loadtest/traces/mooncake_conversation.jsonl"

// simOptions are the flags of `tandem-lab sim`.
type simOptions struct {
	scenarios, policies  []string
	jsonPath, reportPath string
	picture              string
	autoscale, goals     bool
	parts                bool
	firstToken           string
	coldStarts           []time.Duration
	capacity             string
	optimum              int
}

func simCommand() *cobra.Command {
	cfg := policy.Config{}
	var opts simOptions
	cmd := &cobra.Command{
		Use:     "sim",
		Short:   "Replay a trace against a simulated cluster and compare routing policies",
		Long:    simHelp,
		Example: simExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case opts.optimum != 0:
				return runOptimum(cmd, cfg, opts)
			case opts.autoscale:
				return runScaling(cmd, cfg, opts)
			}
			return runSim(cmd, cfg, opts)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&cfg.Traces, "trace", []string{conversationTrace}, "what to replay: Mooncake JSONL `files`, or generated ones of "+strings.Join(policy.GeneratedTraces(), ", ")+"; all: the conversation trace and these")
	f.IntVar(&cfg.Limit, "limit", 0, "at most so many requests of it; 0: all")
	f.BoolVar(&opts.autoscale, "autoscale", false, "compare policies of scaling instead of routing")
	f.StringSliceVar(&opts.scenarios, "scenario", []string{"all"}, "all, or `names` or patterns (agents*) of "+strings.Join(policy.Shipped(), ", ")+", or files; with --autoscale of "+strings.Join(scaling.ScenarioNames(), ", "))
	f.StringSliceVar(&opts.policies, "policy", []string{"all"}, "all, strongest (ours, and those that are best somewhere), or `names` of "+strings.Join(policy.Names(), ", ")+"; with --autoscale of "+strings.Join(scaling.PolicyNames(), ", "))
	f.DurationSliceVar(&opts.coldStarts, "cold-start", []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute},
		"with --autoscale: `times` from wanting a server to its first request")
	f.IntVar(&cfg.Seeds, "seeds", 5, "runs of each, that differ in arrival times, noise and ties")
	f.Uint64Var(&cfg.FirstSeed, "first-seed", 1, "`seed` of the first run; 1 to 5 were looked at while parameters were chosen, 101 to 105 never were")
	f.IntVar(&cfg.Parallel, "parallel", 0, "runs at one time; 0: one for each core")
	f.StringVar(&opts.firstToken, "first-token", string(firsttoken.FromDecode), "which `leg` says the first token, whatever the policy: prefill, so that it comes before the transfer, or decode; not with --autoscale")
	f.BoolVar(&opts.goals, "goals", false, "fail where a goal is missed, too; without it only where a request waited beside an idle server")
	f.BoolVar(&opts.parts, "parts", false, "say what each mean time to the first token is made of, too, beside what no policy is below; not with --autoscale")
	f.IntVar(&opts.optimum, "optimum", 0, "hold the policies against the optimum of so many small `cases` instead, which are drawn from seeds")
	f.StringVar(&cfg.KeptRuns, "resume", "", "write each run to this `file` as it ends, and do not run again what is there already of this program; not with --autoscale")
	f.StringVar(&opts.jsonPath, "json", "", "write the figures as JSON to this `file`")
	f.StringVar(&opts.reportPath, "report", "", "write a report as one HTML `file`")
	f.StringVar(&opts.picture, "picture", "", "write an SVG to this `file`: of the first scenarios each policy's mean time to the first token, and its share of requests in time; not with --autoscale")
	f.StringVar(&opts.capacity, "capacity", "", "with --autoscale: servers as in this `file` of tandem calibrate")
	return cmd
}

func runSim(cmd *cobra.Command, cfg policy.Config, opts simOptions) error {
	var err error
	if cfg.Scenarios, err = policy.FindScenarios(opts.scenarios); err != nil {
		return err
	}
	if slices.Contains(cfg.Traces, "all") {
		cfg.Traces = append([]string{conversationTrace}, policy.GeneratedTraces()...)
	}
	if cfg.Policies, err = policy.FindPolicies(opts.policies); err != nil {
		return err
	}
	first := firsttoken.Source(opts.firstToken)
	if err := first.Validate(); err != nil {
		return err
	}
	for _, s := range cfg.Scenarios {
		s.FirstFromPrefill = s.FirstFromPrefill || first == firsttoken.FromPrefill
	}
	if cfg.KeptRuns != "" {
		if cfg.Program, err = programDigest(); err != nil {
			return err
		}
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = runtime.GOMAXPROCS(0)
	}
	picture, err := output.Create(opts.picture)
	if err != nil {
		return err
	}
	var report *policy.Report
	err = runComparison(cmd, opts, func(show func(done, total int, last *policy.Outcome)) (simReport, error) {
		var err error
		report, err = policy.Compare(cmd.Context(), cfg, show)
		return report, err
	})
	if err != nil {
		return errors.Join(err, picture.Close())
	}
	_, err = picture[0].Write(policy.Picture(report))
	if err := errors.Join(err, picture.Close()); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	if opts.parts {
		if err := report.WriteParts(cmd.OutOrStdout()); err != nil {
			return fmt.Errorf("parts: %w", err)
		}
	}
	if opts.goals {
		return errors.Join(report.Err(), report.Missed())
	}
	return report.Err()
}

// programDigest tells this program from others, as those of other source are.
func programDigest() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("which program this is: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("which program this is: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("which program this is: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// runOptimum prints how far policies are from the best that can be done for a few requests.
func runOptimum(cmd *cobra.Command, cfg policy.Config, opts simOptions) error {
	policies, err := policy.FindPolicies(opts.policies)
	if err != nil {
		return err
	}
	gap, err := policy.MeasureGap(cmd.Context(), policies, opts.optimum, max(1, cfg.FirstSeed), cmp.Or(cfg.Parallel, runtime.GOMAXPROCS(0)))
	if err != nil {
		return err
	}
	return gap.WriteTable(cmd.OutOrStdout())
}

func runScaling(cmd *cobra.Command, routing policy.Config, opts simOptions) error {
	if len(routing.Traces) != 1 {
		return errors.New("--autoscale wants one --trace, a file")
	}
	cfg := scaling.Config{
		TracePath: routing.Traces[0], Limit: routing.Limit, Seeds: routing.Seeds, Planner: sizing.DefaultPlanner(),
		Parallel: cmp.Or(routing.Parallel, runtime.GOMAXPROCS(0)),
	}
	var err error
	if cfg.Scenarios, err = scaling.FindScenarios(opts.scenarios); err != nil {
		return err
	}
	if cfg.Policies, err = scaling.FindPolicies(opts.policies); err != nil {
		return err
	}
	if opts.capacity != "" {
		measured, err := sizing.ReadCapacity(opts.capacity)
		if err != nil {
			return err
		}
		for _, s := range cfg.Scenarios {
			s.Hardware = scaling.HardwareOf(measured)
		}
	}
	for _, c := range opts.coldStarts {
		cfg.ColdStarts = append(cfg.ColdStarts, c.Seconds())
	}
	return runComparison(cmd, opts, func(show func(done, total int, last *scaling.Outcome)) (simReport, error) {
		return scaling.Compare(cmd.Context(), cfg, show)
	})
}

// simReport is what comes of a comparison.
type simReport interface {
	WriteTable(w io.Writer) error
	WriteJSON(w io.Writer) error
	WritePage(w io.Writer) error
}

// runComparison runs a comparison, shows how far it is, and writes its report.
func runComparison[O fmt.Stringer](cmd *cobra.Command, opts simOptions, run func(show func(done, total int, last O)) (simReport, error)) error {
	files, err := output.Create(opts.jsonPath, opts.reportPath)
	if err != nil {
		return err
	}
	show, done := progress.Runs(os.Stderr)
	report, err := run(func(ended, total int, last O) { show(ended, total, last) })
	done()
	if err != nil {
		return errors.Join(err, files.Close())
	}
	err = errors.Join(report.WriteTable(cmd.OutOrStdout()), report.WriteJSON(files[0]), report.WritePage(files[1]), files.Close())
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
