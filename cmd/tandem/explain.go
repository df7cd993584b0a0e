package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
)

func explainCommand() *cobra.Command {
	var admin adminport.Port
	var wide, asJSON, all bool
	var since time.Duration
	var limit int
	cmd := &cobra.Command{
		Use:   "explain REQUEST-ID | --all",
		Short: "Say why a request went to the servers it went to",
		Long: `Say why a request went to the servers it went to: every alternative of each
attempt with the parts of its predicted cost, in milliseconds, cheapest first,
and what was measured beside what was predicted.
The request id is what the answer carried in x-request-id; of the last 1,000 requests
its beginning is enough. Any of the gateways that share a Redis answers for all.
With --all it lists the last requests, a line each; with --json as well it prints a
line of JSON each, the oldest first.`,
		Example: "  tandem explain req-0b9c... --admin http://127.0.0.1:8081\n  tandem explain req-0b9c... --json | jq .attempts[0].measured\n  tandem explain --all --since 10m --json > log.jsonl",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return errors.New("want the id of a request or --all, not both")
			case !all && (len(args) != 1 || strings.TrimSuffix(args[0], "...") == ""):
				return errors.New("want the id of one request, or --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if all {
				return explainAll(cmd, admin, since, limit, asJSON, wide)
			}
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
	cmd.Flags().BoolVar(&all, "all", false, "list the last requests of all gateways")
	cmd.Flags().DurationVar(&since, "since", time.Hour, "with --all: requests that came within this `time`")
	cmd.Flags().IntVar(&limit, "limit", 50, "with --all: at most so many `requests`, the newest; up to 10000")
	return cmd
}

// explainAll lists the last requests. Gateways that do not answer are named beside.
func explainAll(cmd *cobra.Command, admin adminport.Port, since time.Duration, limit int, asJSON, wide bool) error {
	list, err := explain.FetchAll(cmd.Context(), admin, since, limit)
	if err != nil {
		return err
	}
	explain.PrintSilent(cmd.ErrOrStderr(), list)
	if asJSON {
		return explain.PrintAllJSON(cmd.OutOrStdout(), list)
	}
	return explain.PrintAll(cmd.OutOrStdout(), list, wide)
}
