package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/loadtest/overload"
)

func overloadCommand() *cobra.Command {
	cfg := overload.Default()
	cmd := &cobra.Command{
		Use:   "overload",
		Short: "Ask for more than the servers can do and look what is still in time",
		Long: `Start a gateway and simulated engines as processes, find the rate at which most
requests get their first token in time, ask for several times as much, and then for
half. It fails when goodput under overload falls below 90 % of the peak, refusals are
slow, memory grows, or something is late ten seconds after the overload.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runOverload(cmd, cfg) },
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.Step, "step", cfg.Step, "time for which each rate is tried in the search for the peak")
	f.DurationVar(&cfg.Over, "over", cfg.Over, "time of overload")
	f.DurationVar(&cfg.After, "after", cfg.After, "time of half the peak afterwards")
	f.Float64Var(&cfg.Factor, "factor", cfg.Factor, "overload, in times the peak")
	f.Float64Var(&cfg.Peak, "peak", 0, "`requests` per second that are taken for the peak; 0: it is searched")
	f.DurationVar(&cfg.SLO, "slo", cfg.SLO, "time to the first token that is in time; the gateway's deadline")
	f.StringArrayVar(&cfg.Gateway, "gateway-flag", nil, "further `flag` of tandem serve; may be repeated")
	return cmd
}

func runOverload(cmd *cobra.Command, cfg overload.Config) (err error) {
	if cfg.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find the own binary: %w", err)
	}
	if cfg.Dir, err = os.MkdirTemp("", "tandem-overload-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cfg.Dir)) }()
	report, err := overload.Measure(cmd.Context(), cfg, func(p overload.Phase) { fmt.Fprintln(cmd.ErrOrStderr(), p) })
	if err != nil {
		return err
	}
	if err := report.WriteTable(cmd.OutOrStdout()); err != nil {
		return err
	}
	var broken []error
	for _, b := range report.Broken() {
		broken = append(broken, errors.New(b))
	}
	return errors.Join(broken...)
}
