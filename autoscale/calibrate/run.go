package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Config is one measurement.
type Config struct {
	Server   string // URL
	Key      string // bearer token; empty: none
	Model    string // empty: the first that the server names
	Budget   int    // tokens, of prompts and answers
	KVTokens int    // 0: the server's metrics say it
	// ITL and Context are what the largest concurrency is looked for; ITL 0: it is not.
	ITL     time.Duration
	Context int // tokens of each sequence
	// Transport carries the requests; nil: TCP.
	Transport http.RoundTripper
}

// DefaultConfig takes about a minute on a fast server.
func DefaultConfig() Config {
	return Config{Budget: 1_200_000, ITL: 30 * time.Millisecond, Context: 4000}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c *Config) Validate() error {
	if !strings.HasPrefix(c.Server, "http://") && !strings.HasPrefix(c.Server, "https://") {
		return fmt.Errorf("server %q: want http://host:port", c.Server)
	}
	if c.Budget < leastBudget {
		return fmt.Errorf("budget %d: want at least %d tokens", c.Budget, leastBudget)
	}
	if c.ITL < 0 || c.KVTokens < 0 || c.Context < 1 {
		return errors.New("itl and kv-tokens must not be negative, context at least one token")
	}
	return nil
}

// leastBudget is enough for a few points of each curve.
const leastBudget = 10_000

// Progress receives how much of the budget is spent, and on what.
type Progress func(spent, budget int, what string)

// run is a measurement under way.
type run struct {
	cfg    Config
	client *client
	show   Progress
	spent  int
	found  sizing.Capacity
	most   int // tokens of one sequence
}

// Run measures a server. It must be otherwise idle.
func Run(ctx context.Context, cfg Config, show Progress) (*sizing.Capacity, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		own := &http.Transport{MaxIdleConnsPerHost: 1024}
		defer own.CloseIdleConnections()
		cfg.Transport = own
	}
	r := &run{cfg: cfg, show: show, client: &client{
		http: &http.Client{Transport: cfg.Transport}, url: strings.TrimRight(cfg.Server, "/"), key: cfg.Key, model: cfg.Model,
	}}
	for _, part := range []func(context.Context) error{r.describe, r.prefill, r.steps, r.largest} {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("calibrate %s: %w", cfg.Server, err)
		}
	}
	return &r.found, r.found.Validate()
}

func (r *run) describe(ctx context.Context) error {
	longest, err := r.client.describe(ctx)
	if err != nil {
		return err
	}
	kv := r.cfg.KVTokens
	if kv == 0 {
		if kv, err = r.client.kvTokens(ctx); err != nil {
			return err
		}
	}
	if kv == 0 {
		return errors.New("its metrics do not report the size of its KV cache: set --kv-tokens")
	}
	r.most = kv / 2
	if longest > 0 {
		r.most = min(r.most, longest)
	}
	r.found = sizing.Capacity{Schema: 1, Server: r.cfg.Server, Model: r.client.model, KVTokens: kv}
	_, _, err = r.client.stream(ctx, 64, 4) // opens the connection, warms what is cold
	return err
}

// lengths of prompts in tokens, and how often each is measured.
var lengths = []int{256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}

const repeats = 3

// prefill measures prompts alone on the server, within a quarter of the budget.
func (r *run) prefill(ctx context.Context) error {
	var xs []curve.Features
	var ys []float64
	for _, n := range lengths {
		if n >= r.most || r.spent+repeats*n > r.cfg.Budget/4 {
			break
		}
		var times []float64
		for range repeats {
			r.spend(n+1, fmt.Sprintf("prefill of %d tokens", n))
			sent, came, err := r.client.stream(ctx, n, 1)
			if err != nil {
				return err
			}
			times = append(times, came[0].Sub(sent).Seconds())
		}
		y := median(times)
		r.found.PrefillPoints = append(r.found.PrefillPoints, sizing.PrefillPoint{Tokens: n, Seconds: y})
		xs, ys = append(xs, curve.PrefillFeatures(n, 0)), append(ys, y)
	}
	r.found.Prefill = fit(xs, ys)
	return nil
}

func (r *run) spend(tokens int, what string) {
	r.spent += tokens
	r.show(min(r.spent, r.cfg.Budget), r.cfg.Budget, what)
}

// steps measures decode: small contexts show what a sequence adds, shares of the KV
// cache what their tokens add. It leaves the tokens of one look for the largest
// concurrency, which shows what the largest share would, if that is no more than half of
// the budget.
func (r *run) steps(ctx context.Context) error {
	most := r.cfg.Budget
	if room := r.room(); room > 0 {
		if look := tokensOf(room, r.look(room)); look <= r.cfg.Budget/2 {
			most -= look
		}
	}
	for _, n := range []int{1, 4, 16, 64} {
		if _, err := r.step(ctx, n, 32, most); err != nil {
			return err
		}
	}
	for _, eighths := range []int{1, 2, 4, 6} {
		held := r.found.KVTokens * eighths / 8
		n := min(max(held/4096, 4), 64)
		if _, err := r.step(ctx, n, min(held/n, r.most*9/10), most); err != nil {
			return err
		}
	}
	r.fitSteps()
	return nil
}

func (r *run) fitSteps() {
	var xs []curve.Features
	var ys []float64
	for _, p := range r.found.StepPoints {
		xs, ys = append(xs, curve.StepFeatures(p.Sequences, p.KVTokens)), append(ys, p.Seconds)
	}
	r.found.Step = fit(xs, ys)
}

// outputOf is how long the answers of a batch are, in tokens: while later prompts are
// computed, earlier sequences go on, and need so many more to be still there when the last
// has joined.
func outputOf(sequences, prompt int) int { return 32 + sequences*prompt/1024 }

// tokensOf is what the measurement of a batch spends.
func tokensOf(sequences, prompt int) int { return sequences * (prompt + outputOf(sequences, prompt)) }

// step measures a batch of so many sequences with so many tokens of prompt each, and returns
// how many of them decoded at once: where not all did, there was no batch of this size. It is
// left out when more than most would be spent.
func (r *run) step(ctx context.Context, sequences, prompt, most int) (atOnce int, err error) {
	output := outputOf(sequences, prompt)
	if r.spent+tokensOf(sequences, prompt) > most {
		return 0, nil
	}
	r.spend(tokensOf(sequences, prompt), fmt.Sprintf("decode of %d x %d tokens", sequences, prompt))
	all := make([][]time.Time, sequences)
	group, ctx := errgroup.WithContext(ctx)
	for i := range all {
		group.Go(func() (err error) {
			_, all[i], err = r.client.stream(ctx, prompt, output)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	gaps, atOnce := together(all)
	if len(gaps) > 0 {
		r.found.StepPoints = append(r.found.StepPoints, sizing.StepPoint{
			Sequences: sequences, KVTokens: sequences * (prompt + output/2), Seconds: median(gaps),
		})
	}
	return atOnce, nil
}

// together returns the gaps between tokens, in seconds, of the time in which all
// sequences decoded, and how many had begun when the first ended.
func together(all [][]time.Time) (gaps []float64, atOnce int) {
	from, until := all[0][0], all[0][len(all[0])-1]
	for _, came := range all {
		if came[0].After(from) {
			from = came[0]
		}
		if last := came[len(came)-1]; last.Before(until) {
			until = last
		}
	}
	for _, came := range all {
		if !came[0].After(until) {
			atOnce++
		}
		for i := 1; i < len(came); i++ {
			if !came[i-1].Before(from) && !came[i].After(until) {
				gaps = append(gaps, came[i].Sub(came[i-1]).Seconds())
			}
		}
	}
	return gaps, atOnce
}

// room is how many sequences fit where the largest concurrency is looked for, 0 if it is
// not looked for.
func (r *run) room() int {
	if r.cfg.ITL == 0 || r.cfg.Context >= r.most {
		return 0
	}
	return r.found.KVTokens * 9 / 10 / r.cfg.Context
}

// look is the prompt of each of so many sequences whose context is the wanted one on the
// mean of the measurement.
func (r *run) look(sequences int) (prompt int) {
	return max(1, r.cfg.Context-outputOf(sequences, r.cfg.Context)/2)
}

// largest looks for the largest concurrency within the ITL: it measures where the
// nearest measurements below and above say that it is, until they are close. The first
// look is a little below that: one within the ITL is an answer. A look at more sequences than
// the engine runs at once shows how many it does: it goes on below those.
func (r *run) largest(ctx context.Context) error {
	limit, room := r.cfg.ITL.Seconds(), r.room()
	if room < 1 {
		return nil
	}
	below := at{0, r.found.MinimumStep().Seconds()}
	above := r.expected(room + 1)
	for range mostLooks {
		n := int(math.Round(below.between(above, limit)))
		if below.sequences == 0 {
			n = n * 19 / 20
		}
		n = min(max(n, int(below.sequences)+1), int(above.sequences)-1)
		if above.sequences-below.sequences <= max(1, below.sequences/20) {
			break
		}
		if over := r.spent + tokensOf(n, r.look(n)) - r.cfg.Budget; over > 0 {
			r.found.Lacked = over
			break
		}
		before := len(r.found.StepPoints)
		atOnce, err := r.step(ctx, n, r.look(n), r.cfg.Budget)
		if err != nil {
			return err
		}
		if len(r.found.StepPoints) == before {
			above = r.expected(max(min(atOnce, n-1), int(below.sequences)) + 1)
			continue
		}
		if took := r.found.StepPoints[before].Seconds; took <= limit {
			below = at{float64(n), took}
		} else {
			above = at{float64(n), took}
		}
	}
	r.fitSteps()
	if n := int(below.between(above, limit)); below.sequences > 0 {
		r.found.Largest = &sizing.Concurrency{ITL: limit, Context: r.cfg.Context, Sequences: n}
	}
	return nil
}

// expected is the step time at a number of sequences by what was measured before.
func (r *run) expected(sequences int) at {
	return at{float64(sequences), r.found.Step.Seconds(curve.StepFeatures(sequences, sequences*r.cfg.Context))}
}

// mostLooks is how often a largest concurrency is looked for.
const mostLooks = 5

// at is a step time in seconds at a number of sequences.
type at struct{ sequences, seconds float64 }

// between is where the step takes so many seconds on the line from a to b.
func (a at) between(b at, seconds float64) float64 {
	if b.seconds <= a.seconds || seconds >= b.seconds {
		return b.sequences - 1
	}
	return a.sequences + (b.sequences-a.sequences)*max(0, seconds-a.seconds)/(b.seconds-a.seconds)
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
