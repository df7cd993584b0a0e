package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/loadtest/overload"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/pd"
)

func overloadCommand() *cobra.Command {
	cfg := overload.Default()
	bindings := []string{"late", "arrival"}
	cmd := &cobra.Command{
		Use:   "overload",
		Short: "Ask for more than the servers can do and look what is still in time",
		Long: `Start a gateway and simulated engines as processes, find the rate at which most
requests get their first token in time, ask for several times as much, and then for
half; last let one of two tenants ask for ten times its part. For each binding it prints
a verdict on goodput, refusals, memory, recovery and fairness, and fails if one is missed.
Bound on arrival requests wait in the engines' own queues, which know no tenants: there
fairness is not measured.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runOverloads(cmd, cfg, bindings) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&bindings, "binding", bindings, "bindings of the gateway, one measurement each")
	f.DurationVar(&cfg.Step, "step", cfg.Step, "time for which each rate is tried in the search for the peak")
	f.DurationVar(&cfg.Over, "over", cfg.Over, "time of overload")
	f.DurationVar(&cfg.After, "after", cfg.After, "time of half the peak afterwards")
	f.DurationVar(&cfg.Share, "share", cfg.Share, "time of two tenants that share the peak, and of one that floods; 0: not measured")
	f.Float64Var(&cfg.Factor, "factor", cfg.Factor, "overload, in times the peak")
	f.Float64Var(&cfg.Peak, "peak", 0, "`requests` per second that are taken for the peak; 0: it is searched")
	f.DurationVar(&cfg.SLO, "slo", cfg.SLO, "time to the first token that is in time; the gateway's deadline")
	f.StringArrayVar(&cfg.Gateway, "gateway-flag", nil, "further `flag` of tandem serve; may be repeated")
	return cmd
}

// errMissed: a gate was missed; the table says which.
var errMissed = errors.New("a gate was missed")

func runOverloads(cmd *cobra.Command, cfg overload.Config, bindings []string) error {
	var missed error
	for _, binding := range bindings {
		cfg := cfg
		cfg.Binding = binding
		if pd.BindMode(binding) == pd.OnArrival {
			cfg.Share = 0
		}
		err := runOverload(cmd, cfg)
		if err != nil && !errors.Is(err, errMissed) {
			return err
		}
		missed = errors.Join(missed, err)
	}
	return missed
}

func runOverload(cmd *cobra.Command, cfg overload.Config) (err error) {
	if cfg.From, err = process.Find(); err != nil {
		return err
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
	if !report.OK() {
		return fmt.Errorf("bound %s: %w", cfg.Binding, errMissed)
	}
	return nil
}
