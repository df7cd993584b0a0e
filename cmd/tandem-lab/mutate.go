package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/mutate"
)

// mutateOptions are the flags of `tandem-lab mutate` that are not of one package's run.
type mutateOptions struct{ work, list, jsonPath string }

func mutateCommand() *cobra.Command {
	cfg := mutate.Config{Mutants: 60, Seed: 1, Jobs: 2, Out: os.Stderr}
	var opts mutateOptions
	cmd := &cobra.Command{
		Use:   "mutate PACKAGE...",
		Short: "Plant faults in packages and count those that their tests notice",
		Long: `Draw faults in each package (a folder of this repository: pd/order), run the
package's own tests with each fault in turn, and print those that no test notices
and the share that one does. It fails when that is less than 85 % in a package.
What was found is kept in the work folder: a run that was interrupted goes on where
it ended, until a file of the package changes.

Faults that no test can detect stand in a list with a reason each; at most 5 %
of the drawn ones may.`,
		Example: "  tandem-lab mutate pd/order pools\n  tandem-lab mutate --mutants 0 pd/order",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, packages []string) error { return runMutate(cmd, cfg, opts, packages) },
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Mutants, "mutants", cfg.Mutants, "`number` of faults that are drawn in each package; 0: all")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "`number` that the draw begins with")
	f.IntVar(&cfg.Jobs, "jobs", cfg.Jobs, "`number` of runs of the tests at once")
	f.StringVar(&opts.work, "work", filepath.Join("bin", "mutate"), "`folder` for test binaries and results")
	f.StringVar(&opts.list, "equivalent", filepath.Join("loadtest", "mutate", "equivalent.txt"), "`file` with the faults that no test can detect")
	f.StringVar(&opts.jsonPath, "json", "", "`file` for the results")
	return cmd
}

// runMutate runs the packages one after the other. One that fails does not keep the others from their turn.
func runMutate(cmd *cobra.Command, cfg mutate.Config, opts mutateOptions, packages []string) (err error) {
	if cfg.Equivalent, err = mutate.ReadEquivalent(opts.list); err != nil {
		return err
	}
	if cfg.Work, err = filepath.Abs(opts.work); err != nil {
		return err
	}
	files, err := output.Create(opts.jsonPath)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(cfg.Out, "seed %d, %d faults a package\n", cfg.Seed, cfg.Mutants)
	var results []mutate.Result
	var failed error
	for _, p := range packages {
		cfg.Package = filepath.ToSlash(filepath.Clean(p))
		if cfg.Dir, err = filepath.Abs(p); err != nil {
			return errors.Join(err, files.Close())
		}
		r, err := mutate.Run(cmd.Context(), cfg)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		results = append(results, r)
	}
	if below := mutate.Report(cmd.OutOrStdout(), results); below > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d of %d packages are below the goal", below, len(results)))
	}
	enc := json.NewEncoder(files[0])
	enc.SetIndent("", "  ")
	return errors.Join(failed, enc.Encode(results), files.Close())
}
