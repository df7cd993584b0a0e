package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/serving"
)

func checkCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Validate a configuration, probe its servers and ask its Redis",
		Example: "  tandem check -c tandem.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serving.Check(cmd.Context(), file, cmd.Flags(), cmd.OutOrStdout())
		},
	}
	serving.AddFlags(cmd, &file)
	return cmd
}
