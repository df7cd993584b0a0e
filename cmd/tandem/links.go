package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/gateway/live"
)

func linksCommand() *cobra.Command {
	var admin adminport.Port
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "links",
		Short: "Say what transfers of KV take, and which pair is slow",
		Long: `Say what transfers of KV between servers are believed to take, by class of distance,
and of the pairs that moved KV lately how they compare with their class, slowest first:
as measured, and as choices take them to be. It is asked of all gateways that share a
Redis: transfers are those of all.`,
		Example: "  tandem links --admin http://127.0.0.1:8081\n  tandem links --json | jq '.pairs[] | select(.slower > 1)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var links live.LinkList
			if err := admin.Get(cmd.Context(), "/debug/links", &links); err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(links)
			}
			most := shownPairs
			if all {
				most = len(links.Pairs)
			}
			return printLinks(cmd.OutOrStdout(), links, most)
		},
	}
	admin.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "print every pair")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print all that is known, as the admin port has it")
	return cmd
}

// shownPairs is how many pairs are printed without --all.
const shownPairs = 20

// printLinks writes the classes, and no more than so many pairs.
func printLinks(out io.Writer, links live.LinkList, most int) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "class\tlatency ms\tGB/s")
	for _, c := range links.Classes {
		_, _ = fmt.Fprintf(t, "%s\t%.2f\t%.1f\n", c.Distance, c.LatencyMs, c.GBPerSecond)
	}
	_, _ = fmt.Fprintln(t, "\nprefill\tdecode\tclass\ttransfers\tmoving\tmeasured\ttaken for\tblamed")
	for _, p := range links.Pairs[:min(len(links.Pairs), most)] {
		measured := "-"
		if p.Measured > 0 {
			measured = fmt.Sprintf("%.1fx", p.Measured)
		}
		blamed := p.Blamed
		if p.FailedAt != nil {
			blamed += ", failed " + p.FailedAt.Format(time.TimeOnly)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%.1fx\t%s\n", p.Prefill, p.Decode, cmp.Or(p.Distance, "-"), p.Transfers, p.Moving, measured, p.Slower, cmp.Or(blamed, "-"))
	}
	if rest := len(links.Pairs) - most; rest > 0 {
		_, _ = fmt.Fprintf(t, "and %d more pairs: --all\n", rest)
	}
	for _, id := range slices.Sorted(maps.Keys(links.Silent)) {
		_, _ = fmt.Fprintf(t, "no answer of gateway %s: %s\n", id, links.Silent[id])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the links: %w", err)
	}
	return nil
}
