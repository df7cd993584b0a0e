// Package overload measures what a gateway does when clients ask for more than its
// servers can do: how much of what it answers is still in time, how fast it refuses the
// rest, whether its memory stays flat, how soon all is normal afterwards, and what one
// tenant feels of another that asks for too much. Gateway and simulated engines are
// processes of their own.
package overload

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Config says how long and how much; each phase is longer than the SLO. Default is the
// full measurement.
type Config struct {
	From    process.Programs
	Dir     string        // for logs and the file of keys
	Binding string        // of the gateway
	Step    time.Duration // for which each rate is tried in the search for the peak
	Over    time.Duration // of overload
	After   time.Duration // of half the peak, when it is over
	Share   time.Duration // of two tenants that share the peak, and then of one that floods; 0: not measured
	Factor  float64       // overload, in times the peak
	SLO     time.Duration // for the first token; the gateway's deadline too
	Peak    float64       // requests per second that are taken for the peak; 0: it is searched
	Gateway []string      // further flags of tandem serve
	Engine  []string      // further flags of tandem-lab engine
}

// Default is three times the peak for four minutes: some 320 s in all. Bound on arrival, the
// work that is let in grows for a minute and a half, while prefill's speed is learned, and the
// memory with it: what a leak would add shows from then on.
func Default() Config {
	return Config{
		Binding: "late", Step: 10 * time.Second, Over: 4 * time.Minute, After: 20 * time.Second, Share: 15 * time.Second,
		Factor: 3, SLO: 2 * time.Second,
	}
}

const (
	model        = "overload-model"
	promptTokens = 2000 // some 30 a second fill a simulated prefill server
	outputTokens = 32
	firstRate    = 24.0 // requests per second, surely less than the peak
	nextRate     = 1.15 // from one rate that is tried to the next
	part         = 0.25 // of the peak, for each of two tenants that share it
	flood        = 10.0 // times that part, when one of them asks for too much
	settled      = 10 * time.Second
	startTime    = 20 * time.Second
	stopTime     = 10 * time.Second
)

// Measure starts everything, finds the peak, goes beyond it, and back. show, if not nil,
// is called with each phase when it is over.
func Measure(ctx context.Context, cfg Config, show func(Phase)) (r *Report, err error) {
	if min(cfg.Step, cfg.Over, cfg.After) <= cfg.SLO || cfg.Share > 0 && cfg.Share <= cfg.SLO {
		return nil, fmt.Errorf("each phase must be longer than the SLO of %v, in which queues fill", cfg.SLO)
	}
	s := &testbed{cfg: cfg, show: show}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	r = &Report{Binding: cfg.Binding, Factor: cfg.Factor, SLO: cfg.SLO}
	if _, err := s.load(ctx, "warm-up", cmp.Or(cfg.Peak, firstRate), cfg.Step); err != nil {
		return nil, err
	}
	if r.Peak, err = s.peak(ctx); err != nil {
		return nil, err
	}
	if r.Over, err = s.load(ctx, "overload", cfg.Factor*r.Peak.Rate, cfg.Over); err != nil {
		return nil, err
	}
	if r.After, err = s.load(ctx, "after", r.Peak.Rate/2, cfg.After); err != nil {
		return nil, err
	}
	if cfg.Share == 0 {
		return r, nil
	}
	if r.Shared, err = s.share(ctx, "shared", part*r.Peak.Rate, part*r.Peak.Rate); err != nil {
		return nil, err
	}
	r.Flooded, err = s.share(ctx, "flooded", part*r.Peak.Rate, flood*part*r.Peak.Rate)
	return r, err
}

// share sends the load of two tenants and returns what the first one met.
func (s *testbed) share(ctx context.Context, name string, steady, greedy float64) (Phase, error) {
	other := make(chan error, 1)
	go func() {
		_, err := s.loadAs(ctx, "greedy", name+", the other", greedy, s.cfg.Share)
		other <- err
	}()
	out, err := s.loadAs(ctx, "steady", name, steady, s.cfg.Share)
	return out, errors.Join(err, <-other)
}

// peak is the rate at which most is answered in time: rates grow until some are not.
func (s *testbed) peak(ctx context.Context) (best Phase, err error) {
	if s.cfg.Peak > 0 {
		return s.load(ctx, "peak", s.cfg.Peak, s.cfg.Step)
	}
	for rate := firstRate; ; rate *= nextRate {
		p, err := s.load(ctx, "peak?", rate, s.cfg.Step)
		if err != nil {
			return best, err
		}
		if best.Good < p.Good {
			best = p
			best.Name = "peak"
		}
		if p.Good < 0.95*p.Asked {
			return best, nil
		}
	}
}

// testbed is the processes.
type testbed struct {
	cfg     Config
	show    func(Phase)
	log     *os.File
	all     []*process.Process
	gateway *process.Process
	url     string
}

func (s *testbed) start(ctx context.Context) error {
	keys, err := writeKeys(s.cfg.Dir)
	if err != nil {
		return err
	}
	if s.log, err = process.CreateLog(filepath.Join(s.cfg.Dir, "log")); err != nil {
		return err
	}
	addrs, err := process.FreeAddresses(4)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	prefill, decode := "http://"+addrs[0], "http://"+addrs[1]
	s.url = "http://" + addrs[2]
	engine := func(role, addr string) []string {
		return append([]string{"engine", "--listen", addr, "--role", role, "--model", model}, s.cfg.Engine...)
	}
	for _, c := range []struct {
		name, program, ready string
		args                 []string
	}{
		{"prefill", s.cfg.From.Engine, prefill + "/health", engine("prefill", addrs[0])},
		{"decode", s.cfg.From.Engine, decode + "/health", engine("decode", addrs[1])},
		{"gateway", s.cfg.From.Gateway, s.url + "/health", append([]string{"serve", "--listen", addrs[2], "--admin", addrs[3], "--prefill", prefill, "--decode", decode,
			"--binding", s.cfg.Binding, "--keys-file", keys, "--deadline", s.cfg.SLO.String(), "--log-level", "error"}, s.cfg.Gateway...)},
	} {
		p, err := process.Start(c.name, s.log, nil, c.program, c.args...)
		if err != nil {
			return err
		}
		s.all = append(s.all, p)
		s.gateway = p
		if err := p.Answers(ctx, c.ready); err != nil {
			return err
		}
	}
	return nil
}

func (s *testbed) stop() error {
	err := process.StopAll(s.all, stopTime)
	if s.log != nil {
		err = errors.Join(err, s.log.Close())
	}
	return err
}

// writeKeys writes the file of the tenants' keys, which are their names.
func writeKeys(dir string) (path string, err error) {
	text := "secret: 0123456789abcdef0123456789abcdef\nkeys:\n"
	for _, tenant := range []string{"steady", "greedy"} {
		text += fmt.Sprintf("  - {sha256: %x, tenant: %s}\n", sha256.Sum256([]byte(tenant)), tenant)
	}
	path = filepath.Join(dir, "keys.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// load sends one rate for a time and waits until all is answered.
func (s *testbed) load(ctx context.Context, name string, rate float64, length time.Duration) (Phase, error) {
	return s.loadAs(ctx, "steady", name, rate, length)
}

// loadAs is load, of one of the tenants.
func (s *testbed) loadAs(ctx context.Context, tenant, name string, rate float64, length time.Duration) (Phase, error) {
	cfg := loadtest.DefaultConfig()
	cfg.Header = http.Header{"Authorization": {"Bearer " + tenant}}
	cfg.URL, cfg.Model, cfg.WordsPerToken = s.url, model, 0.65
	cfg.RPS, cfg.Duration, cfg.MaxInFlight = rate, length, 100_000
	cfg.PromptTokens, cfg.OutputTokens, cfg.IgnoreEOS = loadtest.FixedLength(promptTokens), loadtest.FixedLength(outputTokens), true
	p := newPhase(name, rate, length, s.cfg.SLO)
	cfg.OnEnd = p.ended
	memory := watchMemory(s.gateway.PID())
	report, err := loadtest.Run(ctx, cfg, nil)
	samples := memory()
	if err != nil {
		return Phase{}, err
	}
	if report.Interrupted {
		return Phase{}, context.Cause(ctx)
	}
	out := p.result(samples)
	if s.show != nil {
		s.show(out)
	}
	return out, nil
}
