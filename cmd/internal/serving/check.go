package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// Check reads a configuration as Command does, and says of it and of its servers what is wrong.
func Check(ctx context.Context, file string, flags *pflag.FlagSet, out io.Writer) error {
	RouteRedisLog(slog.New(slog.DiscardHandler)) // the error that is printed says the same
	cfg, err := loadConfig(file, flags)
	if err != nil {
		return err
	}
	return check(ctx, cfg, out)
}

// check asks all servers at once, prints what each answered, and then what will not work: as
// errors what leaves requests or servers unserved, as warnings the rest.
func check(ctx context.Context, cfg config, out io.Writer) error {
	keys, err := checkFiles(cfg, out)
	if err != nil {
		return err
	}
	specs := cfg.specs()
	inCluster, err := askKubernetes(ctx, cfg.discovery.kube)
	if err != nil {
		return err
	}
	for _, spec := range inCluster {
		specs = append(specs, cfg.kv.withEvents(spec))
	}
	answers, err := askServers(ctx, cfg, specs, out)
	if err != nil {
		return err
	}
	if err := printAnswers(out, answers); err != nil {
		return err
	}
	if err := printHosts(out, answers, cfg.pd.StrictHandoffs); err != nil {
		return err
	}
	faults, warnings := judge(&cfg, keys, answers)
	if err := askRedis(ctx, &cfg.redis); err != nil {
		faults = append(faults, fmt.Errorf("redis: %w", err))
	}
	for _, text := range warnings {
		if _, err := fmt.Fprintln(out, "WARN", text); err != nil {
			return err
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	named := "all servers that it names"
	if !cfg.redis.Alone() {
		named = "Redis and " + named
	}
	_, err = fmt.Fprintf(out, "\nThe configuration is valid, and %s answer.\n", named)
	return err
}

// askRedis tries what replicas do there. Of a cluster or of Sentinels the first answers may be late.
func askRedis(ctx context.Context, cfg *RedisConfig) error {
	if cfg.Alone() {
		return nil
	}
	client, err := cfg.Client()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // what was written expires
	for range 5 {
		if err = client.Get(ctx, cfg.Prefix+"check").Err(); err == nil || errors.Is(err, redis.Nil) {
			return tryRedis(ctx, client, cfg.Prefix)
		}
	}
	return err
}

// checkFiles reads the files that the configuration names, and returns the keys, nil where none is asked for.
func checkFiles(cfg config, out io.Writer) (*access.Keys, error) {
	keys, err := checkAccess(cfg.access, out)
	if err != nil {
		return nil, err
	}
	for _, port := range []*porttls.Config{&cfg.ports.clientTLS, &cfg.ports.adminTLS, &cfg.ports.pickerTLS, &cfg.scaling.keda.tls, &cfg.decider.tls} {
		if _, err := port.Server(tls.NoClientCert, slog.New(slog.DiscardHandler)); err != nil {
			return nil, err
		}
	}
	if _, err := secretfile.ReadFilled("kv-secret-file", cfg.kv.secretFile); err != nil {
		return nil, err
	}
	if _, err := secretfile.ReadFilled("trtllm-key-file", cfg.engines.trtllmKey); err != nil {
		return nil, err
	}
	return keys, nil
}

// checkAccess reads the files of keys and of the admin's token.
func checkAccess(cfg accessConfig, out io.Writer) (*access.Keys, error) {
	if _, err := secretfile.ReadFilled("admin-token-file", cfg.adminTokenFile); err != nil {
		return nil, err
	}
	keys, err := cfg.keys()
	if err != nil || keys == nil {
		return nil, err
	}
	count, tenants := keys.Len()
	_, err = fmt.Fprintf(out, "%s of %s, classes %s\n\n", counted(count, "key"), counted(tenants, "tenant"), strings.Join(cfg.Classes, ", "))
	return keys, err
}

// counted is a number of things, of which one is named so.
func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func modelNames(models []pools.Model) string {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.ID
	}
	return strings.Join(names, ",")
}

// describeEngine is what an engine reported of itself and its KV cache.
func describeEngine(reported pools.Identity) string {
	parts := []string{reported.Engine, reported.Version}
	if reported.BlockTokens != "" {
		parts = append(parts, "blocks of "+reported.BlockTokens)
	}
	if reported.KVType != "" {
		parts = append(parts, "KV "+reported.KVType)
	}
	if reported.KeepsAnswers {
		parts = append(parts, "keeps answers' KV")
	}
	if reported.SwitchesRole {
		parts = append(parts, "can switch its role")
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
}

func describeLoad(l load.Load) string {
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
