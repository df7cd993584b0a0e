package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/loadtest/mutate"
)

func mutateCommand() *cobra.Command {
	cfg := mutate.Config{Mutants: 60, Seed: 1, Jobs: 2}
	var work, list, to string
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
		RunE: func(cmd *cobra.Command, packages []string) error {
			equivalent, err := mutate.ReadEquivalent(list)
			if err != nil {
				return err
			}
			if cfg.Work, err = filepath.Abs(work); err != nil {
				return err
			}
			cfg.Equivalent, cfg.Out = equivalent, os.Stderr
			_, _ = fmt.Fprintf(os.Stderr, "seed %d, %d faults a package\n", cfg.Seed, cfg.Mutants)
			var results []mutate.Result
			var failed error
			for _, p := range packages {
				of := cfg
				of.Package = filepath.ToSlash(filepath.Clean(p))
				if of.Dir, err = filepath.Abs(p); err != nil {
					return err
				}
				r, err := mutate.Run(cmd.Context(), of)
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				results = append(results, r)
			}
			if to != "" {
				content, err := json.MarshalIndent(results, "", "  ")
				if err != nil {
					return err
				}
				if err := os.WriteFile(to, content, 0o644); err != nil {
					return err
				}
			}
			if below := mutate.Report(cmd.OutOrStdout(), results); below > 0 {
				failed = errors.Join(failed, fmt.Errorf("%d of %d packages are below the goal", below, len(results)))
			}
			return failed
		},
	}
	cmd.Flags().IntVar(&cfg.Mutants, "mutants", cfg.Mutants, "`number` of faults that are drawn in each package; 0: all")
	cmd.Flags().Uint64Var(&cfg.Seed, "seed", cfg.Seed, "`number` that the draw begins with")
	cmd.Flags().IntVar(&cfg.Jobs, "jobs", cfg.Jobs, "`number` of runs of the tests at once")
	cmd.Flags().StringVar(&work, "work", filepath.Join("bin", "mutate"), "`folder` for test binaries and results")
	cmd.Flags().StringVar(&list, "equivalent", filepath.Join("loadtest", "mutate", "equivalent.txt"), "`file` with the faults that no test can detect")
	cmd.Flags().StringVar(&to, "json", "", "`file` for the results")
	return cmd
}
