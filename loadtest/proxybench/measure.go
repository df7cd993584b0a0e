package proxybench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Value names a figure of a measure.
type Value struct {
	Name  string
	Title string
	Unit  string
	// Ratio: what counts is how many times nginx's it is.
	Ratio bool
	// Added: what counts is how much it is above what clients see without a proxy.
	Added bool
	// More: higher is better.
	More bool
}

// measure is one thing that is measured of a proxy.
type measure struct {
	name   string
	values []Value
	// steady names the figure by which nginx, first and last in a round, is held against itself.
	steady string
	// fresh: of a process that has done nothing else.
	fresh bool
	run   func(context.Context, *probe) (map[string]float64, error)
}

// These are taken only of those that ask for them.
const (
	idleMeasure = "idle"
	sentMeasure = "sent"
)

// measures are all, in the order in which they are taken.
var measures = []measure{
	{"memory", []Value{{"memory", "open stream, 4 KB prompt", "KB", true, false, false}}, "memory", true, memoryOf(4 << 10)},
	{"memory-long", []Value{{"memory-long", "open stream, 200 KB prompt", "KB", true, false, false}}, "memory-long", true, memoryOf(200 << 10)},
	{"requests", []Value{{"requests-cpu", "request, saturated: CPU", "us", true, false, false}, {"requests-rate", "requests, saturated", "1/s", true, false, true}}, "requests-cpu", false, saturated},
	{"latency", []Value{{"latency-p50", "at 500 requests/s: p50", "ms", false, true, false}, {"latency-p99", "at 500 requests/s: p99", "ms", false, true, false}, {"latency-cpu", "at 500 requests/s: CPU", "us", true, false, false}}, "latency-cpu", false, twiceAsLong(atRate)},
	{"events", []Value{{"events-cpu", "event, paced: CPU", "us", true, false, false}, {"events-p99", "event, paced: late, p99", "ms", false, true, false}}, "events-cpu", false, paced},
	{"blast", []Value{{"blast-cpu", "event, blast: CPU", "us", true, false, false}}, "blast-cpu", false, blast},
	{"long", []Value{{"long-rate", "220 KB prompts, 150 at once", "1/s", true, false, true}, {"long-cpu", "220 KB prompts: CPU", "us", true, false, false}}, "long-cpu", false, longPrompts},
	{sentMeasure, []Value{{"sent-p50", "512 KB prompt, last byte to engine: p50", "ms", false, true, false}, {"sent-p99", "512 KB prompt, last byte to engine: p99", "ms", false, true, false}}, "", false, sent},
	{"gone", []Value{{"gone-p50", "client gone to leg closed: p50", "ms", false, false, false}, {"gone-p99", "client gone to leg closed: p99", "ms", false, false, false}}, "", false, gone},
	{idleMeasure, []Value{{"idle-cores", "512 servers, idle", "cores", false, false, false}}, "", false, idle},
}

// Measures are the names of all.
func Measures() (names []string) {
	for i := range measures {
		names = append(names, measures[i].name)
	}
	return names
}

func findMeasure(name string) (*measure, error) {
	for i := range measures {
		if measures[i].name == name {
			return &measures[i], nil
		}
	}
	return nil, fmt.Errorf("measure %q is none of %s", name, strings.Join(Measures(), ", "))
}

// probe is what a measure is taken with.
type probe struct {
	address string
	tree    tree
	control string
	lasts   time.Duration // of one measure
	streams int           // that are open for a figure of memory
	tally   *tally
}

const (
	smallPrompt = 4 << 10
	longPrompt  = 220 << 10
	// longestPrompt has 131,000 tokens.
	longestPrompt = 512 << 10
	answer        = 16  // tokens of a whole answer
	together      = 64  // requests at once where a proxy is saturated
	rate          = 500 // requests per second where it is not
)

// window lets a load run for a while before it is counted, and returns what came in a time and what
// the proxy computed for it.
func (p *probe) window(ctx context.Context, count func() int64) (n int64, cpu time.Duration, took time.Duration, err error) {
	return p.windowAfter(ctx, p.lasts/4, count)
}

// windowAfter is a window behind so long a while.
func (p *probe) windowAfter(ctx context.Context, ahead time.Duration, count func() int64) (n int64, cpu time.Duration, took time.Duration, err error) {
	if err := pause(ctx, ahead); err != nil {
		return 0, 0, 0, err
	}
	before, err := p.cpu()
	if err != nil {
		return 0, 0, 0, err
	}
	from, start := count(), time.Now()
	if err := pause(ctx, p.lasts); err != nil {
		return 0, 0, 0, err
	}
	n, took = count()-from, time.Since(start)
	after, err := p.cpu()
	if n == 0 && err == nil {
		err = errNothing
	}
	return n, after - before, took, err
}

// errNothing: no answer came at all.
var errNothing = errors.New("nothing came through")

// cpu of the proxy; nothing where there is none.
func (p *probe) cpu() (time.Duration, error) {
	if p.tree.root == 0 {
		return 0, nil
	}
	return p.tree.cpu()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// hasTime waits, and reports whether the load goes on.
func hasTime(load context.Context, d time.Duration) bool { return pause(load, d) == nil }

// per is microseconds of CPU for each of n.
func per(cpu time.Duration, n int64) float64 { return float64(cpu.Nanoseconds()) / 1000 / float64(n) }

// saturated asks for whole answers as fast as they come.
func saturated(ctx context.Context, p *probe) (map[string]float64, error) {
	load, end := context.WithCancel(ctx)
	wait := whole(load, p.address, together, smallPrompt, answer, p.tally)
	n, cpu, took, err := p.window(ctx, p.tally.requests.Load)
	end()
	wait()
	return map[string]float64{"requests-cpu": per(cpu, max(n, 1)), "requests-rate": float64(n) / took.Seconds()}, err
}

// twiceAsLong is for a high quantile: of 1,000 requests ten are above the 99th percentile, of 500 five.
func twiceAsLong(run func(context.Context, *probe) (map[string]float64, error)) func(context.Context, *probe) (map[string]float64, error) {
	return func(ctx context.Context, p *probe) (map[string]float64, error) {
		p.lasts *= 2
		return run(ctx, p)
	}
}

// atRate asks for whole answers at a rate that leaves the proxy time.
func atRate(ctx context.Context, p *probe) (map[string]float64, error) {
	const workers = 50
	texts := prompts(smallPrompt, answer, false)
	begin := time.Now()
	gap := time.Second * workers / rate
	p.tally.timed = begin.Add(p.lasts / 4)
	load, end := context.WithCancel(ctx)
	sent := make([]int, workers)
	wait := each(load, p.address, workers, p.tally, func(c *client, worker int) error {
		due := begin.Add(gap*time.Duration(sent[worker]) + gap*time.Duration(worker)/workers)
		sent[worker]++
		if !hasTime(load, time.Until(due)) {
			return nil
		}
		start := time.Now()
		n := marks.Add(1)
		if err := c.ask(&texts[n%documents], markOf(n), answer); err != nil {
			return err
		}
		p.tally.requests.Add(1)
		p.tally.took(start, time.Since(start))
		return nil
	})
	n, cpu, _, err := p.window(ctx, p.tally.requests.Load)
	end()
	wait()
	return map[string]float64{"latency-p50": p.tally.quantile(0.5), "latency-p99": p.tally.quantile(0.99), "latency-cpu": per(cpu, max(n, 1))}, err
}

// paced has streams of fifty events a second open, for a while before they are counted: what opening two hundred of them
// at once leaves behind, as the collection of the memory that it took, is no cost of events.
func paced(ctx context.Context, p *probe) (map[string]float64, error) {
	const open, gap = 200, 20 * time.Millisecond
	ahead := time.Second + p.lasts/4
	load, end := context.WithCancel(ctx)
	p.tally.timed = time.Now().Add(ahead)
	wait := streams(load, p.address, open, smallPrompt, int((ahead+2*p.lasts)/gap)+100, gap, p.tally)
	n, cpu, _, err := p.windowAfter(ctx, ahead, p.tally.events.Load)
	end()
	wait()
	return map[string]float64{"events-cpu": per(cpu, max(n, 1)), "events-p99": p.tally.quantile(0.99)}, err
}

// blast has streams whose events come as fast as they can.
func blast(ctx context.Context, p *probe) (map[string]float64, error) {
	load, end := context.WithCancel(ctx)
	wait := streams(load, p.address, 16, smallPrompt, 1000, 0, p.tally)
	n, cpu, _, err := p.window(ctx, p.tally.events.Load)
	end()
	wait()
	return map[string]float64{"blast-cpu": per(cpu, max(n, 1))}, err
}

// longPrompts has streams with long prompts and short answers.
func longPrompts(ctx context.Context, p *probe) (map[string]float64, error) {
	load, end := context.WithCancel(ctx)
	wait := streams(load, p.address, 150, longPrompt, 10, 0, p.tally)
	n, cpu, took, err := p.window(ctx, p.tally.requests.Load)
	end()
	wait()
	return map[string]float64{"long-rate": float64(n) / took.Seconds(), "long-cpu": per(cpu, max(n, 1))}, err
}

// memoryOf has many streams open that say little.
func memoryOf(size int) func(context.Context, *probe) (map[string]float64, error) {
	name := "memory"
	if size > smallPrompt {
		name = "memory-long"
	}
	return func(ctx context.Context, p *probe) (map[string]float64, error) {
		if p.tree.root == 0 {
			return map[string]float64{name: 0}, nil
		}
		before, err := p.tree.memory()
		if err != nil {
			return nil, err
		}
		load, end := context.WithCancel(ctx)
		defer end()
		open, wait := p.hold(load, size)
		if open < p.streams && ctx.Err() == nil {
			p.tally.fail(ctx, wrong("%d of %d streams were open after %v", open, p.streams, openTime))
		}
		if err := pause(ctx, p.lasts); err != nil {
			return nil, err
		}
		after, err := p.tree.memory()
		end()
		wait()
		if open == 0 {
			err = errors.Join(err, errNothing)
		}
		return map[string]float64{name: float64(after-before) / 1024 / float64(max(open, 1))}, err
	}
}

// openTime is how long all streams of a figure of memory may take to open.
const openTime = 20 * time.Second

// hold opens streams and reads them until the context ends; open is how many there are.
func (p *probe) hold(ctx context.Context, size int) (open int, wait func()) {
	const openers, gap = 32, time.Second
	texts := prompts(size, 3600, true)
	texts.pace(gap)
	until := time.Now().Add(openTime)
	var reading, opening sync.WaitGroup
	var mu sync.Mutex // guards open
	for i := range openers {
		opening.Go(func() {
			for k := i; k < p.streams && ctx.Err() == nil && time.Now().Before(until); k += openers {
				c := &client{address: p.address}
				s, err := c.open(&texts[k%documents], nextMark())
				if err != nil {
					p.tally.fail(ctx, err)
					continue
				}
				_ = c.conn.SetDeadline(time.Time{})
				mu.Lock()
				open++
				mu.Unlock()
				stop := context.AfterFunc(ctx, c.interrupt)
				reading.Go(func() {
					defer stop()
					defer c.close()
					for more := true; more; {
						if more, err = s.next(); err != nil {
							p.tally.fail(ctx, err)
							return
						}
					}
				})
			}
		})
	}
	opening.Wait()
	return open, reading.Wait
}

// gone lets clients leave in the middle of streams while others load the proxy, and asks the engines
// when they noticed.
func gone(ctx context.Context, p *probe) (map[string]float64, error) {
	load, end := context.WithCancel(ctx)
	wait := streams(load, p.address, together-16, smallPrompt, 100, 0, p.tally)
	var mu sync.Mutex // guards left
	left := map[mark]time.Time{}
	texts := prompts(smallPrompt, 2000, true)
	texts.pace(20 * time.Millisecond)
	leavers := each(load, p.address, 16, p.tally, func(c *client, _ int) error {
		m := nextMark()
		s, err := c.open(&texts[0], m)
		if err != nil {
			return err
		}
		for range 2 { // the first may be prefill's, and decode not be asked yet: then no engine has anything to learn
			if _, err := s.next(); err != nil {
				c.close()
				return err
			}
		}
		if !hasTime(load, time.Duration(20+rand.IntN(60))*time.Millisecond) {
			return nil
		}
		mu.Lock()
		left[m] = time.Now()
		mu.Unlock()
		c.close()
		return nil
	})
	err := pause(ctx, p.lasts+p.lasts/4)
	if err == nil {
		err = pause(ctx, time.Second) // for the last to be noticed under load
	}
	end()
	wait()
	leavers()
	if err != nil {
		return nil, err
	}
	return p.noticed(ctx, left)
}

// sent takes the time between the last byte of a long prompt, as its client sends it, and that byte at the engine: while
// nothing else is asked for, of documents that were asked about before.
func sent(ctx context.Context, p *probe) (map[string]float64, error) {
	const beforehand = 3 * documents // what the proxy learns of them it has learned
	texts := prompts(longestPrompt, 1, false)
	c := &client{address: p.address}
	defer c.close()
	stop := context.AfterFunc(ctx, c.interrupt)
	defer stop()
	ended := map[mark]time.Time{}
	until := time.Now().Add(p.lasts)
	for n := 0; n < beforehand || time.Now().Before(until); n++ {
		m := nextMark()
		at, err := c.askAt(&texts[n%documents], m, 1)
		if err != nil {
			p.tally.fail(ctx, err)
			return nil, err
		}
		p.tally.requests.Add(1)
		if n >= beforehand {
			ended[m] = at
		} else {
			until = time.Now().Add(p.lasts)
		}
	}
	seen, err := p.seen(ctx, "arrivals")
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for m, at := range ended {
		if nanos, arrived := seen[string(m[:])]; arrived {
			took = append(took, time.Unix(0, nanos).Sub(at))
		} else {
			p.tally.fail(ctx, wrong("no engine read a request that was answered"))
		}
	}
	if len(took) == 0 {
		return nil, errNothing
	}
	return map[string]float64{"sent-p50": quantile(took, 0.5), "sent-p99": quantile(took, 0.99)}, nil
}

// seen asks the engines when they saw something of each request, in nanoseconds since 1970.
func (p *probe) seen(ctx context.Context, what string) (at map[string]int64, err error) {
	text, err := process.Ask(ctx, http.MethodGet, "http://"+p.control+"/"+what, nil)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &at); err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	return at, nil
}

// noticed compares when clients left with when the engines saw it.
func (p *probe) noticed(ctx context.Context, left map[mark]time.Time) (map[string]float64, error) {
	seen, err := p.seen(ctx, "departures")
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	unnoticed := 0
	for m, at := range left {
		if nanos, noticed := seen[string(m[:])]; noticed {
			took = append(took, time.Unix(0, nanos).Sub(at))
		} else if time.Since(at) > 2*time.Second {
			unnoticed++
		}
	}
	for range unnoticed {
		p.tally.fail(ctx, wrong("an engine did not learn that the client left"))
	}
	if len(took) == 0 {
		return nil, errNothing
	}
	return map[string]float64{"gone-p50": quantile(took, 0.5), "gone-p99": quantile(took, 0.99)}, nil
}

// idle lets a proxy be.
func idle(ctx context.Context, p *probe) (map[string]float64, error) {
	if err := pause(ctx, p.lasts); err != nil { // the first probes of many servers
		return nil, err
	}
	before, err := p.cpu()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := pause(ctx, 2*p.lasts); err != nil {
		return nil, err
	}
	after, err := p.cpu()
	return map[string]float64{"idle-cores": (after - before).Seconds() / time.Since(start).Seconds()}, err
}
