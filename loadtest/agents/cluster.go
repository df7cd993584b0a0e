package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// cluster is engines in this process and a gateway, which is one of its own.
type cluster struct {
	engines []*engine.Engine
	gateway *process.Process
	clients string // address of the gateway
	admin   string
	dir     string
}

// startTime is how long it may take until the gateway is ready.
const startTime = 30 * time.Second

// decodeServers are so many for each cluster: decoding is not what is measured.
func decodeServers(prefill int) int { return max(2, prefill/2) }

// startCluster brings a cluster up. What it started is returned with the error too, so that it
// can be stopped.
func startCluster(ctx context.Context, cfg *Config, r *round, blocks int, log io.Writer) (c *cluster, err error) {
	c = &cluster{}
	if c.dir, err = os.MkdirTemp("", "tandem-agents-"); err != nil {
		return c, fmt.Errorf("make a directory: %w", err)
	}
	var file strings.Builder
	for _, role := range []struct {
		name            string
		servers, blocks int
	}{{engine.RolePrefill, r.Servers, blocks}, {engine.RoleDecode, decodeServers(r.Servers), decodeBlocks}} {
		fmt.Fprintf(&file, "%s:\n", role.name)
		for range role.servers {
			e, err := engine.Start(ctx, engineConfig(cfg, role.name, role.blocks))
			if err != nil {
				return c, err
			}
			c.engines = append(c.engines, e)
			state := e.State()
			fmt.Fprintf(&file, "  - {url: %q, events: %q, replay: %q}\n", e.URL(), local(state.EventsEndpoints[0]), local(state.ReplayEndpoints[0]))
		}
	}
	return c, c.startGateway(ctx, cfg, r, file.String(), log)
}

// decodeBlocks hold all that is decoded.
const decodeBlocks = 1 << 17

func engineConfig(cfg *Config, role string, blocks int) engine.Config {
	e := engine.Default()
	e.Model, e.Version, e.Role = modelName, rendersAll, role
	e.TimeScale = 1 / cfg.Speed
	e.BlockSize, e.Blocks = blockTokens, blocks
	e.MaxModelLen = min(e.MaxModelLen, blocks*blockTokens)
	e.EventsEndpoint, e.ReplayEndpoint = "tcp://*:*", "tcp://*:*"
	return e
}

// local is an address that can be connected to.
func local(endpoint string) string {
	return strings.NewReplacer("*", "127.0.0.1", "0.0.0.0", "127.0.0.1").Replace(endpoint)
}

// startGateway starts it with servers that it knows as after a calibration.
func (c *cluster) startGateway(ctx context.Context, cfg *Config, r *round, servers string, log io.Writer) error {
	path, capacity := filepath.Join(c.dir, "tandem.yaml"), filepath.Join(c.dir, "capacity.json")
	if err := errors.Join(os.WriteFile(path, []byte(servers), 0o600), writeCapacity(capacity, 1/cfg.Speed)); err != nil {
		return fmt.Errorf("write the gateway's configuration: %w", err)
	}
	free, err := process.FreeAddresses(2)
	if err != nil {
		return err
	}
	c.clients, c.admin = free[0], free[1]
	args := append([]string{
		"serve", "-c", path, "--listen", c.clients, "--admin", c.admin, "--log-level", "warn", "--capacity", capacity,
		"--expose-pair", "--block-tokens", fmt.Sprint(blockTokens),
		"--max-wait", "10m", "--prefill-timeout", "10m", "--first-event-timeout", "10m",
	}, r.policy.flags...)
	if c.gateway, err = process.Start("gateway", log, nil, cfg.From.Gateway, args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := c.gateway.Answers(ctx, "http://"+c.admin+"/readyz"); err != nil {
		return err
	}
	return process.AwaitServers(ctx, c.admin, len(c.engines))
}

// writeCapacity writes what the simulated engines do (loadtest/engine/timing.go) with prompts of up
// to 30,000 new tokens in steps of 8,192, within a tenth. What of a prompt is cached takes none of their
// time, attention to it neither, so that nothing counts in the square.
func writeCapacity(path string, scale float64) error {
	raw, err := json.Marshal(map[string]any{
		"schema": 1, "server": "simulated engine", "model": modelName, "kv_tokens": decodeBlocks * blockTokens,
		"prefill": []float64{0.0155 * scale, 0.0187 * scale, 0},
		"step":    []float64{0.006 * scale, 0.00001 * scale, 0.01 * scale},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

// stop ends the gateway, then the engines.
func (c *cluster) stop() error {
	var failed []error
	if c.gateway != nil {
		failed = append(failed, c.gateway.Stop(10*time.Second))
	}
	for _, e := range c.engines {
		failed = append(failed, e.Close())
	}
	if c.dir != "" {
		failed = append(failed, os.RemoveAll(c.dir))
	}
	return errors.Join(failed...)
}
