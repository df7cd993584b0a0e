package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

func checkCommand() *cobra.Command {
	cfg := defaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Validate a configuration and probe its servers",
		Example: "  tandem check -c tandem.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(file, cmd.Flags())
			if err != nil {
				return err
			}
			return check(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "YAML `file` with settings and servers")
	cmd.Flags().SortFlags = false
	cfg.bind(cmd.Flags())
	return cmd
}

// check probes all servers at once and prints what each said.
func check(ctx context.Context, cfg config, out io.Writer) error {
	if err := checkDoor(cfg.door, out); err != nil {
		return err
	}
	for _, port := range []*portTLS{&cfg.adminTLS, &cfg.scaler.tls, &cfg.decider.tls} {
		if _, err := port.config(tls.NoClientCert); err != nil {
			return err
		}
	}
	specs := cfg.specs()
	inCluster, err := askKubernetes(ctx, cfg.kube)
	if err != nil {
		return err
	}
	for _, spec := range inCluster {
		specs = append(specs, cfg.kv.withEvents(spec))
	}
	transport, err := withEngineKey(pd.NewTransport(cfg.connect), cfg.engineKey)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport, Timeout: cfg.pools.ProbeTimeout}
	log := slog.New(slog.NewTextHandler(out, nil)) // what engines contradict
	lines := make([]string, len(specs))
	failed := make([]bool, len(specs))
	up := make([]*pools.Server, len(specs))
	var probes sync.WaitGroup
	for i, spec := range specs {
		probes.Go(func() {
			said, err := pools.Probe(ctx, spec, cfg.pools.LoadTables, client, log)
			if err != nil {
				lines[i], failed[i] = fmt.Sprintf("%s\t%s\tDOWN\t%v", spec.ID(), spec.Role, err), true
				return
			}
			up[i] = said.Server
			lines[i] = fmt.Sprintf("%s\t%s\tup\t%s\t%s\t%s\t%s", spec.ID(), spec.Role, said.Connector(),
				modelNames(said.Health().Models), describeEngine(said.Identity()), describeLoad(said.Load))
		})
	}
	probes.Wait()

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SERVER\tROLE\tSTATE\tCONNECTOR\tMODELS\tENGINE\tLOAD")
	down := 0
	for i, line := range lines {
		_, _ = fmt.Fprintln(table, line)
		if failed[i] {
			down++
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if down > 0 {
		return fmt.Errorf("the configuration is valid, but %d of %d servers do not answer", down, len(specs))
	}
	var models []pools.Model
	for _, s := range up {
		models = append(models, s.Health().Models...)
	}
	if err := errors.Join(cfg.knowsModels(models), rolesComplete(specs), pairsExist(up)); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "\nThe configuration is valid and all servers answer.")
	return err
}

// pairsExist names the models whose prefill and decode servers cannot use each other's KV.
func pairsExist(servers []*pools.Server) error {
	var faults []error
	pairings := pools.Pairings(servers)
	for _, model := range slices.Sorted(maps.Keys(pairings)) {
		if p := pairings[model]; p.Missing() {
			faults = append(faults, fmt.Errorf("model %s: no prefill and decode server make a pair, %s and %s come closest and differ in %s",
				model, p.Prefill, p.Decode, p.Reason()))
		}
	}
	return errors.Join(faults...)
}

// checkDoor reads the files of keys and of the admin's token.
func checkDoor(cfg doorConfig, out io.Writer) error {
	if _, err := cfg.adminToken(); err != nil {
		return err
	}
	keys, err := cfg.keys()
	if err != nil || keys == nil {
		return err
	}
	count, tenants := keys.Len()
	_, err = fmt.Fprintf(out, "%d keys of %d tenants, classes %s\n\n", count, tenants, strings.Join(cfg.Classes, ", "))
	return err
}

// rolesComplete tells of a fleet that can only ever answer with an error.
func rolesComplete(specs []pools.Spec) error {
	for _, s := range specs {
		if s.Role.Serves(pools.Decode) {
			return nil
		}
	}
	return errors.New("there is no decode server: every request will be refused")
}

func modelNames(models []pools.Model) string {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.ID
	}
	return strings.Join(names, ",")
}

// describeEngine is what an engine told of itself and its KV cache.
func describeEngine(told pools.Identity) string {
	parts := []string{told.Engine, told.Version}
	if told.BlockTokens != "" {
		parts = append(parts, "blocks of "+told.BlockTokens)
	}
	if told.KVType != "" {
		parts = append(parts, "KV "+told.KVType)
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
}

func describeLoad(l pools.Load) string {
	var parts []string
	for name, value := range l.Readings() {
		parts = append(parts, fmt.Sprintf("%s %.6g", name, value))
	}
	if len(parts) == 0 {
		return "unknown"
	}
	slices.Sort(parts)
	return l.Engine + ": " + strings.Join(parts, ", ")
}
