package tokens

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Ask posts a JSON body to a path of any server of the model's pool and returns the
// body of its answer. Its error is (or wraps) ErrNotServed when the server has no such
// path (404, 405, 501), ErrRefused when it found fault with this prompt (other 4xx),
// and anything else when the server failed.
type Ask func(ctx context.Context, path string, body []byte) ([]byte, error)

// What an Ask may say of a server or a prompt.
var (
	ErrNotServed = errors.New("the server does not serve this path")
	ErrRefused   = errors.New("the server refused the prompt")
)

const (
	// noRender is how long a render path is left alone once a server had none.
	noRender = 10 * time.Minute
	// After so many failures in a row requests are spared the wait for pause; one ask
	// then shows whether engines answer again.
	failuresToPause = 3
	pause           = time.Second
)

// asker knows tokens by asking engines.
type asker struct {
	cfg     Config
	ask     Ask
	memory  *memory
	claims  *claims
	metrics *Metrics

	life context.Context // of the asks
	end  context.CancelFunc
	wg   sync.WaitGroup // flights

	mu         sync.Mutex // guards what follows
	closed     bool
	flights    map[uint64]*flight // by text
	failures   int                // in a row
	pausedTill time.Time
	absent     map[string]time.Time // render paths, and when they are tried again
}

// flight is one ask under way. What it found, or why it found nothing, is there when done is
// closed.
type flight struct {
	done  chan struct{}
	found Tokens
	ok    bool
	cuts  []cut // of the text, none where it is partial
}

// sharesMost reports whether the ask is for a text that begins with nearly all of this one: with so much that another
// ask for it would not be worth it, once it is known.
func (f *flight) sharesMost(t *text) bool {
	least := int32(len(t.prints) - len(t.prints)/worthAsking)
	for i := len(t.cuts) - 1; i >= 0 && t.cuts[i].cell >= least; i-- {
		at, found := slices.BinarySearchFunc(f.cuts, t.cuts[i].cell, func(c cut, cell int32) int { return cmp.Compare(c.cell, cell) })
		if found && f.cuts[at].hash == t.cuts[i].hash {
			return true
		}
	}
	return false
}

func newAsker(cfg Config, ask Ask, memory *memory, claims *claims, metrics *Metrics) *asker {
	a := &asker{cfg: cfg, ask: ask, memory: memory, claims: claims, metrics: metrics, flights: map[uint64]*flight{}, absent: map[string]time.Time{}}
	a.life, a.end = context.WithCancel(context.Background())
	return a
}

// close ends the asks and waits for them.
func (a *asker) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.end()
	a.wg.Wait()
}

// tokens takes a prompt from the memory if it is known completely, and else asks, where that is worth it. A
// request waits for the answer unless the memory knows nearly all of the prompt: then the ask
// is for the conversation's next turn, which begins with this prompt.
func (a *asker) tokens(ctx context.Context, p *Prompt) (Tokens, bool) {
	b, ok := takeApart(p)
	if !ok {
		return unknown(BadForm)
	}
	t, ok := p.readBody(&b)
	if !ok {
		return unknown(BadForm)
	}
	defer t.free()
	c := a.memory.recall(t)
	known := c.tokens()
	var f *flight
	var kin []*flight
	var why Reason
	waits := a.waitsFor(t, &c)
	if waits || a.memory.isWorthAsking(t, &c) {
		f, kin, why = a.start(p, t)
	}
	if len(kin) > 0 && waits {
		why = awaitAll(ctx, kin, a.cfg.waitFor(t.size))
		c = a.memory.recall(t)
		known = c.tokens()
	}
	if f != nil && waits {
		found, ok := f.wait(ctx, a.cfg.waitFor(t.size))
		if why = found.Unknown; ok {
			known = found
		}
	}
	if len(known.IDs) == 0 {
		known.Unknown = why
	}
	known.setText(t)
	known.Text = p.chunksOf(&b)
	known.Mode, known.Adapter, known.Salt = Engine, p.Adapter, p.Salt
	if f != nil && !known.Complete {
		known.Later = laterTokens(&known, f, a.cfg.waitFor(t.size))
	}
	return known, len(known.IDs) > 0
}

// waitsFor reports whether a request should wait for an ask: not where only a little of its prompt
// is unknown.
func (a *asker) waitsFor(t *text, c *claim) bool {
	return !c.complete && (len(c.ids) == 0 || c.unknownBytes(t) > a.cfg.AskOver || t.partial)
}

func (f *flight) wait(ctx context.Context, most time.Duration) (Tokens, bool) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.found, f.ok
	case <-ctx.Done():
	case <-timer.C:
	}
	return unknown(Late)
}

// awaitAll waits until asks for other prompts have ended, and says why less than all may be known: some have not.
func awaitAll(ctx context.Context, asks []*flight, most time.Duration) Reason {
	until := time.Now().Add(most)
	for _, f := range asks {
		if found, ok := f.wait(ctx, time.Until(until)); !ok {
			return found.Unknown
		}
	}
	return ""
}

// kinLocked are two asks that are under way for nearly all of a text, if there are: once they are answered the memory
// knows what they share (see DESIGN.md), and of a hundred questions on one new document that come at once two are asked.
func (a *asker) kinLocked(t *text) (two []*flight) {
	if t.partial {
		return nil
	}
	for _, f := range a.flights {
		if f.sharesMost(t) {
			if two = append(two, f); len(two) == 2 {
				return two
			}
		}
	}
	return nil
}

// start asks for a prompt, or joins the ask that is under way for it, or the two that are for nearly all of it. There is
// neither when no engine is asked: too much is under way, engines do not answer, or no path takes this prompt.
func (a *asker) start(p *Prompt, t *text) (_ *flight, kin []*flight, _ Reason) {
	key := t.sum
	if t.partial {
		key = xxhash.Sum64(p.Body)
	}
	believed := func(by Method) bool { return a.claims.believes(t.context, by) }
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.flights[key]; f != nil {
		return f, nil, ""
	}
	if kin := a.kinLocked(t); kin != nil {
		return nil, kin, ""
	}
	if a.closed || len(a.flights) >= a.cfg.MaxAsks || time.Now().Before(a.pausedTill) {
		a.metrics.engineAsked(a.cfg.Model, "refused")
		return nil, nil, Busy
	}
	questions, why := p.questions(t, believed), p.noAnswer(t, believed)
	if len(questions) == 0 {
		return nil, nil, why
	}
	own := t.clone()
	f := &flight{done: make(chan struct{})}
	if !t.partial {
		f.cuts = own.cuts
	}
	a.flights[key] = f
	a.wg.Go(func() {
		defer close(f.done)
		f.found, f.ok = a.request(questions, &own, why)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.flights, key)
	})
	return f, nil, ""
}

// noAnswer is why nothing is known of a prompt where no path takes it.
func (p *Prompt) noAnswer(t *text, believed func(Method) bool) Reason {
	switch {
	case t.partial:
		return Media
	case (p.API == Messages || p.API == Responses) && !believed(ByTranslation), p.API == Chat && !believed(ByTokenize):
		return Wrong
	}
	return NoPath
}

// request asks until a question is answered. One that a server does not serve, or refuses,
// leaves the next one to be tried; why is the reason where no server has a path.
func (a *asker) request(questions []question, t *text, why Reason) (Tokens, bool) {
	ctx, cancel := context.WithTimeout(a.life, a.cfg.AskTimeout)
	defer cancel()
	for _, q := range questions {
		if q.render && a.isAbsent(q.path) {
			continue
		}
		answer, err := a.ask(ctx, q.path, q.body)
		if errors.Is(err, ErrNotServed) || errors.Is(err, ErrRefused) {
			a.recordResult(true)
			if q.render && errors.Is(err, ErrNotServed) {
				a.recordAbsent(q.path)
			}
			if errors.Is(err, ErrRefused) {
				why = Refused
			}
			continue
		}
		found, ok := Tokens{}, false
		if err == nil {
			found, ok = q.read(answer, t.partial)
		}
		a.recordResult(ok)
		if !ok {
			why = Failed
			break
		}
		a.metrics.engineAsked(a.cfg.Model, "ok")
		found.By = q.by
		if len(found.Media) == 0 {
			a.metrics.learned(a.cfg.Model, a.memory, a.memory.learn(t, found.IDs, q.by))
		}
		return found, true
	}
	a.metrics.engineAsked(a.cfg.Model, "failed")
	return unknown(why)
}

// recordResult counts failures in a row.
func (a *asker) recordResult(ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok {
		a.failures = 0
		return
	}
	if a.failures++; a.failures >= failuresToPause {
		a.pausedTill = time.Now().Add(pause)
	}
}

func (a *asker) isAbsent(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.absent[path])
}

func (a *asker) recordAbsent(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.absent[path] = time.Now().Add(noRender)
}
