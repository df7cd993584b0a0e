package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Run runs every way in every round on a cluster of its own. show is called with what is
// begun.
func Run(ctx context.Context, cfg Config, show func(done, all int, what string)) (*Report, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log, err := process.CreateLog(cfg.LogPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	r := newReport(&cfg)
	all := cfg.Rounds * len(cfg.Ways)
	for round := range cfg.Rounds {
		for i := range cfg.Ways {
			way := &cfg.Ways[i]
			show(round*len(cfg.Ways)+i, all, way.Name)
			result, metrics, err := load(ctx, &cfg, way, uint64(round+1), log)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way.Name, err)
			}
			r.add(i, result, metrics, cfg.Shape.Scale)
		}
	}
	show(all, all, "")
	return r, nil
}

// load puts the load on one way; metrics are the gateway's, afterwards.
func load(ctx context.Context, cfg *Config, way *Way, seed uint64, log io.Writer) (result *loadtest.Report, metrics process.Metrics, err error) {
	dir, err := os.MkdirTemp("", "tandem-live-")
	if err != nil {
		return nil, "", fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c, err := start(ctx, cfg, way, log, dir)
	defer func() { err = errors.Join(err, c.stop()) }()
	if err != nil {
		return nil, "", err
	}
	l := traceLoad(cfg, "http://"+c.clients, seed)
	if result, err = loadtest.Run(ctx, l, func(loadtest.Snapshot) {}); err != nil {
		return nil, "", err
	}
	metrics, err = process.ReadMetrics(ctx, c.admin)
	return result, metrics, err
}

// traceLoad is all requests of a trace for a gateway at a URL.
func traceLoad(cfg *Config, url string, seed uint64) loadtest.Config {
	l := loadtest.DefaultConfig()
	l.URL = url
	l.Model = model
	l.Trace, l.Limit = cfg.Trace, cfg.Limit
	l.Duration = 0 // to the last request, however slow the engines are
	l.TimeScale = cfg.Shape.Scale / cfg.Shape.Speedup
	l.Seed = seed
	l.Timeout = 10 * time.Minute
	l.IgnoreEOS = true
	return l
}
