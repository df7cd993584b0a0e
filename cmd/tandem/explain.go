package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/cmd/internal/serving"
)

func explainCommand() *cobra.Command {
	var admin, tokenFile string
	cmd := &cobra.Command{
		Use:   "explain REQUEST-ID",
		Short: "Say why a request went to the servers it went to",
		Long: `Say why a request went to the servers it went to: every alternative of each
attempt with the parts of its predicted cost, in milliseconds, cheapest first.
The request id is what the answer carried in x-request-id.`,
		Example: "  tandem explain req-0b9c... --admin http://127.0.0.1:8081",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := serving.ReadAdminToken(tokenFile)
			if err != nil {
				return err
			}
			d, err := explain.Fetch(admin, token, args[0])
			if err != nil {
				return err
			}
			return explain.Print(cmd.OutOrStdout(), d)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", "http://127.0.0.1:8081", "`address` of the gateway's admin port")
	cmd.Flags().StringVar(&tokenFile, "admin-token-file", "", "`file` with the token that the admin port asks for")
	return cmd
}
