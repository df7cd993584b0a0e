package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
)

func explainCommand() *cobra.Command {
	var admin adminport.Port
	var wide, asJSON bool
	cmd := &cobra.Command{
		Use:   "explain REQUEST-ID",
		Short: "Say why a request went to the servers it went to",
		Long: `Say why a request went to the servers it went to: every alternative of each
attempt with the parts of its predicted cost, in milliseconds, cheapest first,
and what was measured beside what was predicted.
The request id is what the answer carried in x-request-id.`,
		Example: "  tandem explain req-0b9c... --admin http://127.0.0.1:8081\n  tandem explain req-0b9c... --json | jq .attempts[0].measured",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := explain.Fetch(cmd.Context(), admin, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return explain.PrintJSON(cmd.OutOrStdout(), d)
			}
			return explain.Print(cmd.OutOrStdout(), d, wide)
		},
	}
	admin.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&wide, "wide", false, "print every column, and names of servers in full, however wide that is")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print all that is known, as the admin port has it")
	return cmd
}
