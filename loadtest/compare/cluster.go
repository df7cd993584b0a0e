package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// cluster is engines and a gateway in front of them.
type cluster struct {
	processes []*process.Process // the gateway last
	clients   string             // address of the gateway
	admin     string
}

const model = "live"

// takesPieces is a version of the engine with which prompts are prefilled in pieces, and that has
// render paths for all APIs.
const takesPieces = "0.33.0"

// start brings a cluster up. What it started is returned with the error too, so that
// it can be stopped.
func start(ctx context.Context, cfg *Config, way *Way, log io.Writer, dir string) (c *cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	c = &cluster{}
	shape := &cfg.Shape
	free, err := process.FreeAddresses(3*(shape.Prefill+shape.Decode) + 2)
	if err != nil {
		return c, err
	}
	var file strings.Builder
	for _, role := range []struct {
		name    string
		servers int
	}{{"prefill", shape.Prefill}, {"decode", shape.Decode}} {
		fmt.Fprintf(&file, "%s:\n", role.name)
		for i := range role.servers {
			rack := fmt.Sprint("rack-", i%shape.Racks)
			api, events, replay := free[0], free[1], free[2]
			free = free[3:]
			if err := c.engine(cfg, way, log, role.name, rack, api, events, replay); err != nil {
				return c, err
			}
			fmt.Fprintf(&file, "  - {url: \"http://%s\", rack: %s, events: \"tcp://%s\", replay: \"tcp://%s\"}\n", api, rack, events, replay)
		}
	}
	for _, p := range c.processes {
		if err := p.Answers(ctx, "http://"+p.Name+"/health"); err != nil {
			return c, err
		}
	}
	return c, c.gateway(ctx, cfg, way, log, file.String(), dir, free)
}

func (c *cluster) engine(cfg *Config, way *Way, log io.Writer, role, rack, api, events, replay string) error {
	shape := &cfg.Shape
	anywhere := func(addr string) string { return "tcp://*" + addr[strings.LastIndex(addr, ":"):] }
	args := []string{
		"engine", "--listen", api, "--role", role, "--model", model, "--rack", rack, "--engine-version", takesPieces,
		"--events", anywhere(events), "--replay", anywhere(replay),
		"--time-scale", fmt.Sprint(shape.Scale), "--blocks", fmt.Sprint(shape.Blocks),
		"--kv-bytes-per-token", fmt.Sprint(shape.KVBytesPerToken),
		"--link-bytes-per-second", fmt.Sprint(shape.Link), "--uplink-bytes-per-second", fmt.Sprint(shape.Uplink),
	}
	if way.Priority {
		args = append(args, "--priority-scheduling")
	}
	p, err := process.Start(api, log, nil, cfg.From.Engine, args...)
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return nil
}

func (c *cluster) gateway(ctx context.Context, cfg *Config, way *Way, log io.Writer, servers, dir string, free []string) error {
	path := filepath.Join(dir, "tandem.yaml")
	if err := os.WriteFile(path, []byte(servers), 0o600); err != nil {
		return fmt.Errorf("write the gateway's configuration: %w", err)
	}
	c.clients, c.admin = free[0], free[1]
	shape := &cfg.Shape
	objective := func(seconds float64) string { return fmt.Sprintf("%gs", seconds*shape.Scale) }
	real := func(bytesPerSecond float64) string { return fmt.Sprint(bytesPerSecond / shape.Scale) }
	p, err := process.Start("gateway", log, nil, cfg.From.Gateway, append([]string{
		"serve", "-c", path, "--listen", c.clients, "--admin", c.admin, "--log-level", "warn",
		"--kv-bytes-per-token", fmt.Sprint(shape.KVBytesPerToken), "--block-tokens", "16",
		"--link-rack", real(shape.Link), "--link-zone", real(shape.Uplink),
		"--first-token", "decode", // as the simulator
		// No objective for the first token: with one the gateway serves for the share of requests in time, and the
		// simulator's policies serve for the mean.
		"--itl-slo", objective(sloITL), "--prefill-pieces", objective(PieceSeconds),
		"--max-wait", "10m", "--prefill-timeout", "10m", "--first-event-timeout", "10m",
	}, way.Flags...)...)
	if err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return p.Answers(ctx, "http://"+c.admin+"/readyz")
}

// stop ends the gateway, then the engines.
func (c *cluster) stop() error {
	var failed error
	if n := len(c.processes); n > 0 && c.processes[n-1].Name == "gateway" {
		failed = c.processes[n-1].Stop(10 * time.Second)
		c.processes = c.processes[:n-1]
	}
	return errors.Join(failed, process.StopAll(c.processes, 5*time.Second))
}
