package agents

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// run is one load on one cluster.
type run struct {
	API     string `json:"api"`
	Servers int    `json:"prefill_servers"`
	Cache   string `json:"cache"`
	Policy  string `json:"policy"`
}

func (r *run) String() string {
	return fmt.Sprintf("%s, %d servers, %s, %s", r.API, r.Servers, r.Cache, r.Policy)
}

// round is a run with the sessions of one seed.
type round struct {
	run
	policy *policy
	seed   uint64
}

func (r *round) String() string { return fmt.Sprintf("%s, seed %d", &r.run, r.seed) }

// turn is what became of a request.
type turn struct {
	request *request
	usage   usage
	prefill string // the server that computed the prompt; "": a decode server did
	sent    time.Time
	ttft    time.Duration // as measured, not scaled back
	id      string        // of the request
	err     error

	// What the gateway remembers of it, and of that how long after it was sent its servers were
	// chosen, and how long its prefill took from then on. Not scaled back.
	decision            decision
	waited, prefillTook time.Duration
	changed             bool // its server, which it need not
}

func (t *turn) String() string {
	of := t.request.conversation
	return fmt.Sprintf("turn %d of session %d (sub-agent: %t)", t.request.turn, of.session, of.parent != nil)
}

// Run makes every run, one after the other. show is called with what has ended and what is
// begun.
func Run(ctx context.Context, cfg Config, show func(ended, total int, last fmt.Stringer)) (*Report, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log, err := process.CreateLog(cfg.LogPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	if cfg.Turns != nil {
		var err error
		if cfg.turnLog, err = newTurnLog(cfg.Turns); err != nil {
			return nil, fmt.Errorf("log of turns: %w", err)
		}
	}
	report := &Report{Schema: 2, Speed: cfg.Speed, Seeds: cfg.Seeds, Load: cfg.Load}
	total, ended := len(cfg.APIs)*len(cfg.Servers)*len(cfg.Caches)*len(cfg.Policies)*cfg.Seeds, 0
	for _, servers := range cfg.Servers {
		for seed := range uint64(cfg.Seeds) {
			load := cfg.Load
			load.Seed += seed
			requests, err := requestsOf(ctx, cfg.APIs, newWorkload(&load, servers))
			if err != nil {
				return nil, err
			}
			for _, r := range roundsOf(&cfg, servers, load.Seed) {
				if ended == 0 {
					show(0, total, r)
				}
				if err := report.measure(ctx, &cfg, r, requests[r.API], log); err != nil {
					return nil, fmt.Errorf("%s: %w", r, err)
				}
				ended++
				show(ended, total, r)
			}
		}
	}
	report.compare()
	return report, nil
}

// requestsOf are a workload's on each of some APIs.
func requestsOf(ctx context.Context, apis []string, w *workload) (map[string]*requests, error) {
	all := make(map[string]*requests)
	for _, name := range apis {
		var err error
		if all[name], err = newRequests(ctx, findAPI(name), w); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// roundsOf are those with so many servers and of a seed. Those that are compared follow each other:
// a machine that is slower for a while is so for all of them.
func roundsOf(cfg *Config, servers int, seed uint64) (all []*round) {
	for _, cache := range cfg.Caches {
		for _, name := range cfg.Policies {
			for _, api := range cfg.APIs {
				for i := range policies {
					if policies[i].name == name {
						all = append(all, &round{run{API: api, Servers: servers, Cache: cache, Policy: name}, &policies[i], seed})
					}
				}
			}
		}
	}
	return all
}

// measure makes one round and adds its result to that of its run.
func (r *Report) measure(ctx context.Context, cfg *Config, what *round, all *requests, log io.Writer) (err error) {
	blocks := all.blocksPerServer(what.Cache, what.Servers)
	c, err := startCluster(ctx, cfg, what, blocks, log)
	defer func() { err = errors.Join(err, c.stop()) }()
	if err != nil {
		return err
	}
	d := &driver{cfg: cfg, requests: all, url: "http://" + c.clients + all.api.path, client: newClient()}
	defer d.client.CloseIdleConnections()
	began := time.Now()
	turns := d.drive(ctx)
	seconds := time.Since(began).Seconds()
	c.remember(ctx, turns)
	result, err := newResult(what, turns, blocks, cfg.Speed)
	if err != nil {
		return err
	}
	result.Seconds = seconds
	explain(what, result, log)
	if cfg.Turns != nil {
		if err := logTurns(what, turns, cfg.Speed, cfg.turnLog); err != nil {
			return err
		}
	}
	r.add(result)
	return ctx.Err()
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
}

// driver lets the sessions take their turns.
type driver struct {
	cfg      *Config
	requests *requests
	url      string
	client   *http.Client

	mu  sync.Mutex
	log []*turn // in the order in which they were sent
}

// drive runs all sessions to their ends.
func (d *driver) drive(ctx context.Context) []*turn {
	var sessions sync.WaitGroup
	for _, c := range d.requests.workload.sessions {
		sessions.Go(func() {
			d.pause(ctx, c.start)
			d.converse(ctx, c)
		})
	}
	sessions.Wait()
	return d.log
}

// converse takes the turns of a conversation, and waits for its sub-agents where they begin.
func (d *driver) converse(ctx context.Context, c *conversation) {
	for i := range c.steps {
		if i > 0 {
			d.pause(ctx, c.steps[i].think)
		}
		if i == c.branchAt && len(c.branches) > 0 {
			var branches sync.WaitGroup
			for _, b := range c.branches {
				branches.Go(func() { d.converse(ctx, b) })
			}
			branches.Wait()
		}
		if ctx.Err() != nil {
			return
		}
		t := &turn{request: d.requests.byTurn[turnKey{c, i}]}
		d.mu.Lock()
		d.log = append(d.log, t)
		d.mu.Unlock()
		if t.err = d.send(ctx, t); t.err != nil {
			return
		}
	}
}

// pause lets so much of the engines' time pass.
func (d *driver) pause(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(time.Duration(float64(duration) / d.cfg.Speed))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// send takes one turn.
func (d *driver) send(ctx context.Context, t *turn) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(t.request.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	t.sent = time.Now()
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	t.prefill, t.id = resp.Header.Get("X-Tandem-Prefill"), resp.Header.Get("X-Request-Id")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // what there is of it
		return fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	counted := false
	for lines.Scan() {
		data, isData := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !isData {
			continue
		}
		if t.ttft == 0 && d.requests.api.content(data) {
			t.ttft = time.Since(t.sent)
		}
		if u, ok := d.requests.api.usage(data); ok {
			t.usage, counted = u, true
		}
	}
	switch {
	case lines.Err() != nil:
		return lines.Err()
	case !counted || t.ttft == 0:
		return errors.New("the stream ended without content or usage")
	case t.usage.prompt != t.request.tokens:
		return fmt.Errorf("the engine counted %d tokens of a prompt, %d were rendered", t.usage.prompt, t.request.tokens)
	}
	return nil
}
