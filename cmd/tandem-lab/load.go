package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest"
)

const loadHelp = `Send an open loop of requests to an OpenAI-compatible endpoint and judge every answer.

Arrivals do not wait for answers: a slow server meets the same load as a fast
one. A stream that ends without finish_reason or [DONE] is a failure.

Lengths are written 512, uniform:100,900 or lognormal:1200,0.8 (mean in tokens,
sigma of the natural logarithm). Prompts are made of common English words; how
many of them make a token is asked of the server (POST /tokenize with a sample)
before the run, and is one where the server does not say. The report shows the
prompt tokens that the server counted, how many of them it had cached, and with
how many of them an earlier prompt of the run had begun: what perfect knowledge
would have found in caches without limit.

ITL is each gap between two content events of a stream, as vLLM's own benchmark has
it; TPOT is an answer's mean time for each token after the first. AIPerf and GenAI-Perf
call that mean inter-token latency: their ITL is to be compared with TPOT here.

With --turns N an arrival asks the next question of a conversation whose last
answer is at least --think-time old, or opens a new conversation. --rps counts
requests, not conversations.

With --trace FILE (Mooncake's JSONL) the arrivals, lengths and shared prefixes
come from the file, whole or up to --duration and --limit. --time-scale 0.1 replays
it ten times as fast: it multiplies the arrival times, as the simulated engine's
multiplies its own. Requests that the trace stamps with one time are spread over
its steps of 3 s.`

const loadExample = `  tandem-lab load --rps 20 --duration 30s
  tandem-lab load --rps 5 --duration 2m --prompt-tokens lognormal:2000,0.7 --output-tokens 128 --turns 3 --shared-prefix-tokens 1000
  tandem-lab load --trace loadtest/traces/mooncake_conversation.jsonl --limit 200 --time-scale 0.1 --slo-ttft 2s --slo-itl 100ms
  tandem-lab load --rps 20 --duration 30s --fail-on-error --json report.json`

// loadOptions are the flags of `tandem-lab load` that are not of the load itself.
type loadOptions struct {
	noStream    bool
	headers     []string
	jsonPath    string
	failOnError bool
}

func loadCommand() *cobra.Command {
	cfg := loadtest.DefaultConfig()
	var opts loadOptions
	cmd := &cobra.Command{
		Use:     "load",
		Short:   "Load an OpenAI-compatible endpoint and measure TTFT, ITL, TPOT, E2E and goodput",
		Long:    loadHelp,
		Example: loadExample,
		Args:    cobra.NoArgs,
	}
	addLoadFlags(cmd, &cfg, &opts)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		header, err := parseHeaders(opts.headers)
		if err != nil {
			return err
		}
		cfg.Header, cfg.Stream = header, !opts.noStream
		if cfg.Trace != "" && !cmd.Flags().Changed("duration") {
			cfg.Duration = 0
		}
		return runLoad(cmd, cfg, opts)
	}
	return cmd
}

func addLoadFlags(cmd *cobra.Command, cfg *loadtest.Config, opts *loadOptions) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.URL, "url", cfg.URL, "base `URL` of the endpoint, without /v1")
	f.StringVar(&cfg.Model, "model", "", "model `name` (default: the first of /v1/models)")
	f.StringVar((*string)(&cfg.Endpoint), "endpoint", string(cfg.Endpoint), "chat or completions")
	f.BoolVar(&opts.noStream, "no-stream", false, "ask for whole answers; no TTFT, ITL, TPOT then")
	f.StringArrayVar(&opts.headers, "header", nil, "`line` 'Name: value' sent with every request; may be repeated")
	f.BoolVar(&cfg.AllowRemote, "allow-remote", false, "permit a target that is not on this machine")

	f.Float64Var(&cfg.RPS, "rps", cfg.RPS, "requests per second")
	f.DurationVar(&cfg.Duration, "duration", cfg.Duration, "time in which requests arrive (with --trace: the whole trace)")
	f.IntVar(&cfg.Limit, "limit", 0, "at most so many requests; 0: no such limit")
	f.StringVar((*string)(&cfg.Arrivals), "arrivals", string(cfg.Arrivals), "poisson or constant")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of arrivals, lengths and text")

	f.Var(&cfg.PromptTokens, "prompt-tokens", "`length` of one question, without shared prefix and history")
	f.Var(&cfg.OutputTokens, "output-tokens", "`length` of the answer (max_tokens)")
	f.Float64Var(&cfg.WordsPerToken, "words-per-token", 0, "words of a prompt for each token; 0: ask the server")
	f.IntVar(&cfg.SharedPrefixTokens, "shared-prefix-tokens", 0, "tokens that all conversations begin with")
	f.IntVar(&cfg.Turns, "turns", cfg.Turns, "questions in one conversation")
	f.DurationVar(&cfg.ThinkTime, "think-time", 0, "least time between an answer and the next question")
	f.BoolVar(&cfg.IgnoreEOS, "ignore-eos", false, "ask the engine to go on to max_tokens")
	f.StringVar(&cfg.Trace, "trace", "", "Mooncake JSONL `file` to replay")
	f.Float64Var(&cfg.TimeScale, "time-scale", cfg.TimeScale, "multiplies the arrival times of the trace: 0.1 is ten times as fast")

	f.IntVar(&cfg.MaxInFlight, "max-in-flight", cfg.MaxInFlight, "requests in flight; an arrival beyond it fails as client_bound")
	f.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "time for one request, from sending to its end")
	f.DurationVar(&cfg.SLO.TTFT, "slo-ttft", 0, "SLO for goodput: TTFT")
	f.DurationVar(&cfg.SLO.ITL, "slo-itl", 0, "SLO for goodput: longest gap in the answer")
	f.DurationVar(&cfg.SLO.TPOT, "slo-tpot", 0, "SLO for goodput: mean time per token after the first")
	f.DurationVar(&cfg.SLO.E2E, "slo-e2e", 0, "SLO for goodput: whole answer")

	f.StringVar(&opts.jsonPath, "json", "", "write the report as JSON to this `file`; -: to standard output")
	f.BoolVar(&opts.failOnError, "fail-on-error", false, "exit with status 1 if any request failed")

	for _, name := range []string{"rps", "arrivals", "prompt-tokens", "output-tokens", "shared-prefix-tokens", "turns", "think-time"} {
		cmd.MarkFlagsMutuallyExclusive("trace", name)
	}
}

// parseHeaders reads 'Name: value' lines.
func parseHeaders(lines []string) (http.Header, error) {
	header := http.Header{}
	for _, line := range lines {
		name, value, found := strings.Cut(line, ":")
		if !found || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("header %q: want 'Name: value'", line)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return header, nil
}

// runLoad runs the load and writes its report: the table to standard output, or
// to standard error when JSON goes there.
func runLoad(cmd *cobra.Command, cfg loadtest.Config, opts loadOptions) error {
	table, jsonOut, closeJSON, err := reportOutputs(cmd, opts.jsonPath)
	if err != nil {
		return err
	}
	show, done := loadtest.Progress(os.Stderr)
	report, err := loadtest.Run(cmd.Context(), cfg, show)
	done()
	if err != nil {
		return errors.Join(err, closeJSON())
	}
	if err := errors.Join(report.WriteTable(table), report.WriteJSON(jsonOut), closeJSON()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if opts.failOnError && report.Requests.Failed > 0 {
		return fmt.Errorf("%d of %d requests failed", report.Requests.Failed, report.Requests.Arrived)
	}
	return nil
}

// reportOutputs opens where the report goes, before the load is sent: a run must
// not end with a report that cannot be written.
func reportOutputs(cmd *cobra.Command, jsonPath string) (table, json io.Writer, closeJSON func() error, err error) {
	if jsonPath == "-" {
		return cmd.ErrOrStderr(), cmd.OutOrStdout(), func() error { return nil }, nil
	}
	files, err := output.Create(jsonPath)
	if err != nil {
		return nil, nil, nil, err
	}
	return cmd.OutOrStdout(), files[0], files.Close, nil
}
