package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/chaos"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

const chaosHelp = `Break servers, networks and Redis under load and look what it costs the clients.

Each scenario starts gateways and simulated engines as processes of its own, sends
an open loop of requests, lets things happen (kill, hang, slow, cut, restart ...),
and checks what must hold: with one healthy alternative alive no request is lost.
It fails when a check does not hold.`

func chaosCommand() *cobra.Command {
	var names []string
	var jsonPath, reportPath string
	cmd := &cobra.Command{
		Use:     "chaos",
		Short:   "Break things under load and look what it costs the clients",
		Long:    chaosHelp,
		Example: "  tandem-lab chaos --scenario prefill-killed,decode-hangs\n  tandem-lab chaos --json chaos.json --report chaos.html",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runChaos(cmd, names, jsonPath, reportPath) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&names, "scenario", []string{"all"}, "all, or `names` of "+strings.Join(chaos.Names(), ", "))
	f.StringVar(&jsonPath, "json", "", "write the figures as JSON to this `file`")
	f.StringVar(&reportPath, "report", "", "write a report as one HTML `file`")
	return cmd
}

func runChaos(cmd *cobra.Command, names []string, jsonPath, reportPath string) error {
	scenarios, err := chaos.Find(names)
	if err != nil {
		return err
	}
	from, err := process.Find()
	if err != nil {
		return err
	}
	files, err := output.Create(jsonPath, reportPath)
	if err != nil {
		return err
	}
	report, err := chaos.RunAll(cmd.Context(), from, scenarios, chaos.Show(os.Stderr, len(scenarios)))
	if err != nil {
		return errors.Join(err, files.Close())
	}
	err = errors.Join(report.WriteTable(cmd.OutOrStdout()), report.WriteJSON(files[0]), report.WritePage(files[1]), files.Close())
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return report.Err()
}
