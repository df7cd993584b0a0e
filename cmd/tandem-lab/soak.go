package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/loadtest/chaos"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

func soakCommand() *cobra.Command {
	var d time.Duration
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Send load for a long time and find what grows",
		Long: `Send load to a gateway and simulated engines of its own for a time, and print
how its heap, goroutines and descriptors went. It fails when one of them grows by
more than one per cent an hour, or when a request fails.`,
		Example: "  tandem-lab soak --for 5m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if d < 10*time.Second || d > 24*time.Hour {
				return fmt.Errorf("--for %v: want 10s to 24h", d)
			}
			from, err := process.Find()
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "tandem-soak-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			slopes, failed, err := chaos.Soak(cmd.Context(), from, dir, d, os.Stderr)
			if err != nil {
				return err
			}
			if err := chaos.WriteSlopes(cmd.OutOrStdout(), slopes); err != nil {
				return err
			}
			if failed > 0 {
				return fmt.Errorf("%d requests failed", failed)
			}
			for _, s := range slopes {
				if s.Growing {
					return fmt.Errorf("%s grows by %.1f %% an hour", s.Name, 100*s.OfMean)
				}
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&d, "for", 30*time.Minute, "how `long`")
	return cmd
}
