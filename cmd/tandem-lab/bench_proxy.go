package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/proxybench"
)

const benchProxyHelp = `Measure what proxies cost between clients and engines, one at a time, in interleaved
rounds before the same mock engines: CPU of the proxy's processes for each request and
event, latency over direct, memory for each open stream, long prompts, and how soon an
engine learns that a client has left. Hand-offs, tokens, usage and the marks of requests
are checked on both sides; what went wrong stands in the table.

nginx is measured first and last in each round. A measure of a round in which the two
differ by more than --steady is dropped, and the report says so. Behind the rounds it is
taken again, as far as the time lasts.

A file of proxies adds others; loadtest/proxybench/routers.yaml is one, for the wheels
that .ci/proxybench-routers installs.`

// benchProxyOptions are the flags of `tandem-lab bench-proxy` that are not of the run itself.
type benchProxyOptions struct {
	files    []string
	only     []string
	jsonPath string
	svgPath  string
}

func benchProxyCommand() *cobra.Command {
	cfg := proxybench.Default()
	var opts benchProxyOptions
	cmd := &cobra.Command{
		Use:   "bench-proxy",
		Short: "Measure this gateway beside nginx, HAProxy and other routers",
		Long:  benchProxyHelp,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runBenchProxy(cmd, cfg, opts) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&opts.files, "proxies", nil, "`file` with more proxies; may be repeated")
	f.StringArrayVar(&opts.only, "only", nil, "`names` of proxies: those whose name contains one; nginx and direct are measured in any case")
	f.StringSliceVar(&cfg.Measures, "measures", nil, "`names` of measures: "+strings.Join(proxybench.Measures(), ", ")+"; none: all")
	f.IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "times that each proxy is measured")
	f.DurationVar(&cfg.Lasts, "for", cfg.Lasts, "time that one measure takes")
	f.DurationVar(&cfg.Within, "within", cfg.Within, "time in which all rounds have to end; one that would not is left out; 0: no bound")
	f.IntVar(&cfg.Streams, "streams", cfg.Streams, "streams that are open for a figure of memory")
	f.Float64Var(&cfg.Steady, "steady", cfg.Steady, "share by which nginx may differ from itself in a round that counts")
	f.StringVar(&cfg.Cache, "cache", cfg.Cache, "`directory` in which other routers were installed")
	f.StringVar(&cfg.LogPath, "log", "", "`file` for what the processes say")
	f.StringVar(&opts.jsonPath, "json", "", "write the report as JSON to this `file`")
	f.StringVar(&opts.svgPath, "svg", "", "draw the multiples of nginx into this `file`")
	return cmd
}

func runBenchProxy(cmd *cobra.Command, cfg proxybench.Config, opts benchProxyOptions) (err error) {
	if cfg.From, err = process.Find(); err != nil {
		return err
	}
	if cfg.Proxies, err = opts.proxies(&cfg); err != nil {
		return err
	}
	files, err := output.Create(opts.jsonPath, opts.svgPath)
	if err != nil {
		return err
	}
	start := time.Now()
	report, err := proxybench.Run(cmd.Context(), cfg, func(s proxybench.Step) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%6.1f s  round %d of %d, %d of %d: %s, %s\n", time.Since(start).Seconds(), s.Round, s.Rounds, s.At, s.Proxies, s.Proxy, s.Measure)
	})
	if report == nil {
		return errors.Join(err, files.Close())
	}
	if err := errors.Join(err, report.WriteTable(cmd.OutOrStdout()), report.WriteJSON(files[0]), report.WriteSVG(files[1]), files.Close()); err != nil {
		return err
	}
	if !report.OK() {
		return errors.New("not all requests came through as they should; the notes say which")
	}
	return nil
}

// proxies are those built in and those of the files, as far as they are asked for.
func (o *benchProxyOptions) proxies(cfg *proxybench.Config) (chosen []proxybench.Proxy, err error) {
	all, err := proxybench.BuiltIn()
	if err != nil {
		return nil, err
	}
	for _, path := range o.files {
		more, err := proxybench.ReadProxies(path)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(all, func(p proxybench.Proxy) bool { return strings.Contains(p.Name, name) }) {
			return nil, fmt.Errorf("--only %q: no proxy is named like it; there are %s", name, proxyNames(all))
		}
	}
	for _, p := range all {
		wanted := len(o.only) == 0 || p.Name == cfg.Baseline || p.Name == cfg.Direct
		for _, name := range o.only {
			wanted = wanted || strings.Contains(p.Name, name)
		}
		if wanted {
			chosen = append(chosen, p)
		}
	}
	return chosen, nil
}

func proxyNames(all []proxybench.Proxy) string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = strconv.Quote(all[i].Name)
	}
	return strings.Join(names, ", ")
}

// benchEnginesCommand is what bench-proxy starts its engines by.
func benchEnginesCommand() *cobra.Command {
	var control string
	var servers []string
	cmd := &cobra.Command{
		Use:    proxybench.EngineCommand,
		Short:  "Serve the mock engines of bench-proxy",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := make([]proxybench.Server, len(servers))
			for i, text := range servers {
				parts := strings.Split(text, "=")
				if len(parts) != 4 {
					return fmt.Errorf("server %q: want ADDRESS=ENGINE=ROLE=EVENTS", text)
				}
				all[i] = proxybench.Server{Address: parts[0], Engine: parts[1], Role: parts[2], Events: parts[3]}
			}
			return proxybench.ServeEngines(cmd.Context(), control, all)
		},
	}
	cmd.Flags().StringVar(&control, "control", "", "`address` at which the measurement asks what the engines saw")
	cmd.Flags().StringArrayVar(&servers, "server", nil, "`engine` as ADDRESS=ENGINE=ROLE=EVENTS, the last where it publishes KV events or empty; may be repeated")
	return cmd
}
