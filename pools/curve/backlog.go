package curve

import (
	"slices"
	"time"
)

// Work is what one request will cost a server, as predicted when it is claimed.
type Work struct {
	Tokens   int           // prompt tokens for prefill, context tokens for decode
	Answers  int           // requests of the engine that it is; 0: one
	Prompt   int           // of a context's tokens, those of the prompt; 0 for prefill
	Computed int           // of a prompt's tokens, those that are not cached
	Estimate time.Duration // engine time, alone on the server
	// Shared is the part of Estimate that a step of the engine takes whatever is in it: works
	// that are done in one step take it once.
	Shared time.Duration
	// Rest is the engine time of what is left of a prompt of which the work is a piece: it is sent to
	// the same server when its turn has come.
	Rest time.Duration
}

// shared is Shared, where that is not more than all of it; own is what the work adds to the time
// of a step that is done in any case.
func (w Work) shared() time.Duration { return min(w.Shared, w.Estimate) }
func (w Work) own() time.Duration    { return w.Estimate - w.shared() }

// Backlog estimates how much work a server still has, from what was sent to it and
// what came back. The zero value is an idle server that does one work in each step.
//
// The server is taken to work in the order of sending, in steps: what waits when a step ends
// is done in the next one, as far as the step's budget of tokens goes. Only the step that
// runs wears off as time passes, and never below a part of its estimate: one that runs over
// says nothing of the others, and must not pay for them either (letting it hid whole
// queues, and made waits of 80 s under noisy predictions). Source of the steps: vLLM
// v1/core/sched/scheduler.py, schedule: those that run first, then those that wait, within
// max_num_batched_tokens.
//
// A work of which nothing will say that it is done (EndsUnseen) is taken to be when its time is over.
type Backlog struct {
	// StepTokens is how many tokens are computed in one step at most; 0: each work is a step.
	StepTokens int

	items     []workItem    // oldest first
	tokens    int           // of all
	prompts   int           // likewise, Work.Prompt
	rest      time.Duration // of all
	lastDone  time.Time
	lastEnd   time.Time  // of the works that have ended, not of those that are taken to be done
	passed    []workItem // these, until they end
	unseen    int        // of the items, those whose work ends unseen
	computing int        // of the tokens, those of prompts that will show when they have been computed

	// What follows from the items: the last step, how long the step that runs takes and those
	// between the two, and of them and the last one which are full, and what is in one that is not
	// full yet.
	last             forming
	runs             bool // the last step does
	together         int  // works in the step that runs
	running, between time.Duration
	full             time.Duration
	forming          forming
}

type workItem struct {
	Work
	id     uint64
	sent   time.Time
	beside bool // other work was there at the same time
	unseen bool // nothing will say that it is done
	came   bool // of a context: its prompt has been computed, and is there
}

// computing is how many tokens of its prompt have yet to be computed, if it will show when they have been: of a work all,
// of a context those of its prompt, which comes from another server.
func (w *workItem) computing() int {
	switch {
	case w.unseen || w.came:
		return 0
	case w.Prompt > 0:
		return w.Prompt
	}
	return w.Tokens
}

// forming is a step that has not begun.
type forming struct {
	works    int
	computed int           // tokens
	shared   time.Duration // what it takes whatever is in it
	own      time.Duration // what the works in it add to that
}

// takes says whether a work is still done in the step.
func (f *forming) takes(w *Work, budget int) bool {
	return f.works == 0 || budget > 0 && f.computed+w.Computed <= budget
}

func (f *forming) add(w *Work) {
	f.works++
	f.computed += w.Computed
	f.shared = max(f.shared, w.shared())
	f.own += w.own()
}

func (f *forming) time() time.Duration { return f.shared + f.own }

// stepOf is how long a step of one work takes.
func stepOf(w *Work) time.Duration {
	var step forming
	step.add(w)
	return step.time()
}

// overrun is the least part of its estimate that the step that runs is taken to need still,
// however long it has run.
const overrun = 0.3

// Begin adds a request that is sent now.
func (b *Backlog) Begin(id uint64, w Work, now time.Time) {
	b.Pass(now)
	if len(b.items) == 1 { // of more each has been beside another
		b.items[0].beside = true
	}
	b.items = append(b.items, workItem{Work: w, id: id, sent: now, beside: len(b.items) > 0})
	b.tokens += w.Tokens
	b.computing += b.items[len(b.items)-1].computing()
	b.prompts += w.Prompt
	b.rest += w.Rest
	if len(b.items) == 1 {
		b.arrange()
		return
	}
	b.append(&b.items[len(b.items)-1])
	b.close()
}

// arrange puts the items into steps.
func (b *Backlog) arrange() {
	b.last, b.runs, b.running, b.between = forming{}, true, 0, 0
	for i := range b.items {
		b.append(&b.items[i])
	}
	b.close()
}

// append puts an item behind those that are in steps.
func (b *Backlog) append(w *workItem) {
	if b.last.takes(&w.Work, b.StepTokens) && !(b.runs && w.sent.After(b.startOf(&b.items[0]))) {
		b.last.add(&w.Work)
		return
	}
	if b.runs {
		b.running, b.together, b.runs = b.last.time(), b.last.works, false
	} else {
		b.between += b.last.time()
	}
	b.last = forming{}
	b.last.add(&w.Work)
}

// close says of the last step whether it runs, is full or is not full yet.
func (b *Backlog) close() {
	b.full, b.forming = b.between, forming{}
	switch {
	case b.runs:
		b.running, b.together = b.last.time(), b.last.works
	case b.StepTokens > 0 && b.last.computed < b.StepTokens:
		b.forming = b.last
	default:
		b.full += b.last.time()
	}
}

// remove takes an item out. Where each is a step it is taken out of the sums, else all are arranged
// anew.
func (b *Backlog) remove(i int) {
	w, last := b.items[i].Work, i == len(b.items)-1
	b.take(i)
	if b.StepTokens > 0 || last || len(b.items) < 2 {
		b.arrange()
		return
	}
	if i == 0 {
		w = b.items[0].Work // it runs now
		b.running, b.together = stepOf(&w), 1
	}
	b.between -= stepOf(&w)
	b.close()
}

// take takes an item out of those that are outstanding, and leaves the steps as they are.
func (b *Backlog) take(i int) {
	if b.items[i].unseen {
		b.unseen--
	}
	b.computing -= b.items[i].computing()
	b.tokens -= b.items[i].Tokens
	b.prompts -= b.items[i].Prompt
	b.rest -= b.items[i].Rest
	b.items = slices.Delete(b.items, i, i+1)
}

// Prompts is how many tokens of prompts the contexts of all works have.
func (b *Backlog) Prompts() int { return b.prompts }

// Computing is how many tokens the prompts of works and of contexts have that have yet to be computed, of those that will
// show when they have been.
func (b *Backlog) Computing() int { return b.computing }

// Came says of a context that its prompt has been computed, and that the server knows of it.
func (b *Backlog) Came(id uint64) {
	i := slices.IndexFunc(b.items, func(w workItem) bool { return w.id == id })
	if i >= 0 {
		b.computing -= b.items[i].computing()
		b.items[i].came = true
	}
}

// Completion is what a request's answer shows of its server.
type Completion struct {
	Work
	// Served is how long the server worked on it by itself, since its own sending or
	// the answer before: what the estimate is to be compared with.
	Served time.Duration
	Alone  bool // it had the server to itself
}

// End removes a request whose answer has come, false if it is not known. Of one whose work ended unseen
// Served is the time since its own sending or the answer before it: it took that at the most.
func (b *Backlog) End(id uint64, now time.Time) (Completion, bool) {
	b.Pass(now)
	has := func(w workItem) bool { return w.id == id }
	if i := slices.IndexFunc(b.passed, has); i >= 0 {
		w := b.passed[i]
		b.passed = slices.Delete(b.passed, i, i+1)
		return b.complete(&w, b.lastEnd, now), true
	}
	i := slices.IndexFunc(b.items, has)
	if i < 0 {
		return Completion{}, false
	}
	w, before := b.items[i], b.lastDone
	if w.unseen {
		before = b.lastEnd
	}
	b.lastDone = now
	b.remove(i)
	return b.complete(&w, before, now), true
}

// complete is what a work that ends now shows, where the server was done with another one before.
func (b *Backlog) complete(w *workItem, before, now time.Time) Completion {
	b.lastEnd = now
	return Completion{Work: w.Work, Served: max(0, now.Sub(later(w.sent, before))), Alone: !w.beside}
}

// EndsUnseen says of a request that nothing will tell when its work is done: its answer comes whole, much
// later. Unless it was taken to be done in its time the server would seem busy with it until then.
func (b *Backlog) EndsUnseen(id uint64) {
	i := slices.IndexFunc(b.items, func(w workItem) bool { return w.id == id && !w.unseen })
	if i >= 0 {
		b.computing -= b.items[i].computing()
		b.items[i].unseen = true
		b.unseen++
	}
}

// Pass takes works to be done whose time is over and of which nothing will say so. What Len, Tokens,
// Rest, Forming and Floor return is as of the last call.
func (b *Backlog) Pass(now time.Time) {
	for len(b.items) > 0 && b.items[0].unseen {
		done := b.startOf(&b.items[0]).Add(b.running)
		if now.Before(done) {
			return
		}
		for i := b.together - 1; i >= 0; i-- { // the last ones first: b.together is of the step that runs
			if b.items[i].unseen {
				b.passed = append(b.passed, b.items[i])
				b.take(i)
			}
		}
		b.lastDone = done
		b.arrange()
	}
}

// Pause records that the server did something else until now: no request that is
// outstanding has been worked on yet.
func (b *Backlog) Pause(now time.Time) {
	b.lastDone = now
	b.arrange()
}

// startOf is since when the server has worked on a request if it is the oldest.
func (b *Backlog) startOf(w *workItem) time.Time { return later(w.sent, b.lastDone) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Len is how many requests are outstanding, Tokens their tokens.
func (b *Backlog) Len() int    { return len(b.items) }
func (b *Backlog) Tokens() int { return b.tokens }

// Rest is what is left of the prompts of which outstanding works are pieces.
func (b *Backlog) Rest() time.Duration { return b.rest }

// Ahead is the estimated time until a work that were sent now would begin, and what those that
// are done in one step with it add to it:
//
//	max(step that runs - e, 0.3 of it) + full steps + what the works of the next step add to it
//
// e is the time since the last answer, or since the oldest work was sent if that was
// later. The shared part of the next step is not in it: the new work's own estimate has it.
func (b *Backlog) Ahead(now time.Time) time.Duration {
	b.Pass(now)
	return b.untilNextStep(now) + b.forming.own
}

// Forming is the part of Ahead that is done in the same step as what is sent now.
func (b *Backlog) Forming() time.Duration { return b.forming.own }

// untilNextStep is the estimated time until the step begins in which new work is done.
func (b *Backlog) untilNextStep(now time.Time) time.Duration {
	if len(b.items) == 0 {
		return 0
	}
	return max(b.running-now.Sub(b.startOf(&b.items[0])), b.leastOfRunning()) + b.full
}

func (b *Backlog) leastOfRunning() time.Duration {
	return time.Duration(overrun * float64(b.running))
}

// Floor is the part of Ahead that no passing of time takes away, only an answer: at most, where works that
// end unseen are before others.
func (b *Backlog) Floor() time.Duration {
	switch {
	case b.unseen == len(b.items):
		return 0
	case b.items[0].unseen:
		return b.full + b.forming.own
	}
	return b.leastOfRunning() + b.full + b.forming.own
}

// Progress is the part, 0..1, of the step that runs that its estimate says is done.
func (b *Backlog) Progress(now time.Time) float64 {
	b.Pass(now)
	if len(b.items) == 0 || b.running <= 0 {
		return 0
	}
	return min(1, now.Sub(b.startOf(&b.items[0])).Seconds()/b.running.Seconds())
}

// FallsTo returns in how long Ahead, or the time until the next step, will have fallen to
// limit by the passing of time alone, false if only an answer can bring them there. Where the step that
// runs ends unseen it is no later than that: then is the time to ask again.
func (b *Backlog) FallsTo(limit time.Duration, now time.Time) (in time.Duration, ok bool) {
	b.Pass(now)
	for _, limit := range [...]time.Duration{limit, limit - b.forming.own} { // the next step comes first
		step := b.untilNextStep(now)
		if step <= limit {
			in, ok = 0, true
			continue
		}
		if b.leastOfRunning()+b.full > limit { // it may be below nothing: what others sent is above it by itself
			if !ok && len(b.items) > 0 && b.items[0].unseen {
				return b.startOf(&b.items[0]).Add(b.running).Sub(now), true
			}
			return in, ok
		}
		return step - limit, true
	}
	return in, ok
}
