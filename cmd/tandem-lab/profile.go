package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/flame"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/proxybench"
)

// profileOptions are the flags of `tandem-lab profile`.
type profileOptions struct {
	proxy, measure  string
	kind            string
	svgPath, pbPath string
}

func profileCommand() *cobra.Command {
	cfg := proxybench.Default()
	cfg.Lasts = 5 * time.Second
	var opts profileOptions
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "Load the gateway and draw where its CPU or memory goes, as a flame graph",
		Long: `Start the gateway before the mock engines of bench-proxy, put the load of one measure
on it, and write the CPU profile of that time and a flame graph of it; or of the memory that
is held (--kind heap), of all that was allocated (allocs), or of goroutines.`,
		Example: `  tandem-lab profile --measure requests
  tandem-lab profile --measure events --proxy 'tandem, one leg' --svg events.svg
  tandem-lab profile --measure memory --kind heap --streams 2000 --svg heap.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runProfile(cmd, cfg, opts) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.proxy, "proxy", "tandem, pair (NIXL)", "`name` of the proxy, as bench-proxy prints it")
	f.StringVar(&opts.measure, "measure", "requests", "`name` of the measure: "+strings.Join(proxybench.Measures(), ", "))
	f.StringVar(&opts.kind, "kind", proxybench.CPU, "`kind` of profile: profile (CPU), heap, allocs, goroutine")
	f.IntVar(&cfg.Streams, "streams", cfg.Streams, "streams that are open in the measures of memory")
	f.DurationVar(&cfg.Lasts, "for", cfg.Lasts, "time that is profiled")
	f.StringVar(&opts.svgPath, "svg", "bin/profile.svg", "`file` for the flame graph")
	f.StringVar(&opts.pbPath, "pprof", "", "`file` for the profile itself, for go tool pprof; empty: it is not kept")
	f.StringVar(&cfg.LogPath, "log", "", "`file` for what the processes say")
	return cmd
}

func runProfile(cmd *cobra.Command, cfg proxybench.Config, opts profileOptions) (err error) {
	if cfg.From, err = process.Find(); err != nil {
		return err
	}
	all, err := proxybench.BuiltIn()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(p proxybench.Proxy) bool { return p.Name == opts.proxy })
	if at < 0 {
		return fmt.Errorf("proxy %q is none of %s", opts.proxy, proxyNames(all))
	}
	files, err := output.Create(opts.pbPath, opts.svgPath)
	if err != nil {
		return err
	}
	profile, err := proxybench.Profile(cmd.Context(), cfg, all[at], opts.measure, opts.kind)
	if err != nil {
		return errors.Join(err, files.Close())
	}
	_, err = files[0].Write(profile)
	if err := errors.Join(err, flame.WriteSVG(files[1], opts.proxy+", "+opts.measure, bytes.NewReader(profile)), files.Close()); err != nil {
		return fmt.Errorf("write the profile: %w", err)
	}
	fmt.Fprintln(cmd.OutOrStdout(), "wrote", opts.svgPath)
	return nil
}
