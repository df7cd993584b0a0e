package pd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Config is how long legs may take and how often they are tried.
type Config struct {
	PrefillTimeout    time.Duration // the whole prefill leg
	FirstEventTimeout time.Duration // decode, until the first content event of a stream
	IdleTimeout       time.Duration // between two events of a stream
	AnswerTimeout     time.Duration // decode of an answer that is not streamed
	HandoffAge        time.Duration // a hand-off older than this is not used
	// DoubtWait is how long a request waits at most for servers that are in doubt, when no
	// other can take it, and how long a role may be down before the gateway is not ready.
	DoubtWait      time.Duration
	MaxRetries     int        // legs tried again for one request
	RetryRatio     float64    // retries per request over ten seconds, 0..1
	RetryFloor     int        // retries per ten seconds whatever the traffic
	Migrate        bool       // continue streams that break on another pair, where engines tell token ids
	MigrateByText  bool       // and chats by their text where they tell none, which is not exact
	EnginePriority bool       // engines schedule by priority, and are told which
	Objective      Objectives // what requests are served for
	// TTFT and ITL are objectives for each request, 0 is none; Config.SLO says whose count.
	TTFT, ITL pools.PerModel[time.Duration]
	// EnforceDisaggregation: what no pair can serve is refused, and not decoded alone.
	EnforceDisaggregation bool
	// StrictHandoffs: a hand-off that names a host which is not known to be the prefill
	// server's is withheld from decode.
	StrictHandoffs bool
}

// DefaultConfig keeps hand-offs to a third of vLLM's 30 s lease.
func DefaultConfig() Config {
	return Config{
		PrefillTimeout:    120 * time.Second,
		FirstEventTimeout: 60 * time.Second,
		IdleTimeout:       30 * time.Second,
		AnswerTimeout:     600 * time.Second,
		HandoffAge:        10 * time.Second,
		DoubtWait:         10 * time.Second,
		MaxRetries:        3,
		RetryRatio:        0.2,
		RetryFloor:        10,
		Migrate:           true,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	for name, d := range map[string]time.Duration{
		"prefill-timeout": c.PrefillTimeout, "first-event-timeout": c.FirstEventTimeout,
		"idle-timeout": c.IdleTimeout, "answer-timeout": c.AnswerTimeout, "handoff-age": c.HandoffAge,
	} {
		if d <= 0 {
			return fmt.Errorf("%s must be positive", name)
		}
	}
	if c.DoubtWait < 0 {
		return errors.New("doubt-wait must not be negative")
	}
	if c.MaxRetries < 0 || c.RetryRatio < 0 || c.RetryRatio > 1 || c.RetryFloor < 0 {
		return errors.New("max-retries and retry-floor must not be negative, retry-ratio is 0 to 1")
	}
	return nil
}

// Orchestrator runs requests. Its fields are set once, before the first Run.
type Orchestrator struct {
	Config    Config
	Cost      CostModel
	Links     *Links
	Fleet     *pools.Fleet
	Locality  *Locality // nil: nothing is known of who holds what
	Transport http.RoundTripper
	Queue     *Queue
	Hold      *Hold    // nil: a role without a server is an error at once
	Late      *Decider // nil: requests are bound as they arrive
	Budget    *Budget
	Decisions *Decisions
	Suspects  *Quarantine
	Metrics   *Metrics
	Tracer    trace.Tracer
	Log       *slog.Logger

	Outputs *Outputs // nil: nothing is learned of how long answers are
	// Shares returns which hardware is to serve which requests of a base model, nil where
	// there is no plan. It must not wait. nil: there never is one.
	Shares func(model string) *share.Table

	firsts firstTokens // as they were promised, and came
	heat   heat        // of servers' caches

	engines engineIDs
	legs    sync.WaitGroup // prefill legs beside a decode, which may end after the answer has begun
}

// Wait returns when no leg is under way any more. It is for after the last Run.
func (o *Orchestrator) Wait() { o.legs.Wait() }

// Run serves one request: it waits for its turn, then tries pairs until one has
// given its first content event. The context ends when the client has left; with
// a streamed answer it must live as long as the stream. Errors: *NoServerError,
// *LegError, those of the queue, ErrQuarantined, or the context's.
func (o *Orchestrator) Run(ctx context.Context, req *Request) (*Answer, error) {
	arrived := time.Now()
	if o.Suspects.Holds(req, arrived) {
		return nil, ErrQuarantined
	}
	req.OutputTokens = o.Outputs.Expect(req)
	req.Aggregated = req.Aggregated || truncatesByAnswer(req)
	place, err := o.wait(ctx, req)
	queued := time.Since(arrived)
	if err != nil {
		o.Metrics.wait.WithLabelValues(req.Model).Observe(queued.Seconds())
		return nil, err
	}
	o.Budget.Request(arrived)
	place.queued = queued
	leave := func() { o.Queue.leave(place) }
	streaming := false
	defer func() { // also after a panic
		if !streaming {
			leave()
		}
	}()
	answer, err := o.hold(ctx, req, place, arrived)
	if err != nil || answer.leg == nil {
		return answer, err
	}
	streaming = true
	answer.Stream.onClose = leave
	return answer, nil
}

// run takes a request that has its place to its answer. Its servers are given back
// unless that is a stream.
func (o *Orchestrator) run(ctx context.Context, req *Request, p *place, placed time.Time) (*Answer, error) {
	j := o.journey(req, placed)
	j.queued, j.place = p.queued, p
	o.locate(ctx, j)
	streaming := false
	defer func() { // also after a panic
		if !streaming {
			j.release()
		}
	}()
	answer, err := o.serve(ctx, j)
	o.remember(j, err)
	if err == nil {
		answer.Computed = j.computed()
	}
	if err != nil || answer.leg == nil {
		return answer, err
	}
	streaming = true
	answer.Stream = &Stream{leg: answer.leg}
	if j.story != nil {
		answer.Stream.resume = func(broken *BrokenStreamError) (*legStream, []byte, error) { return o.resume(ctx, j, broken) }
	}
	return answer, nil
}

// BaseOf is the model whose servers serve a model: its own name, or for an adapter that of
// its base.
func (o *Orchestrator) BaseOf(model string) string {
	if m, known := o.Fleet.Model(model); known {
		return cmp.Or(m.Parent, model)
	}
	base, _ := o.Hold.Covers(model)
	return cmp.Or(base, model)
}

// locate finds the tokens of the prompt, and with them what servers hold of it.
func (o *Orchestrator) locate(ctx context.Context, j *journey) {
	if o.Locality == nil {
		return
	}
	_, span := o.Tracer.Start(ctx, "locate")
	defer span.End()
	j.prefix = o.Locality.know(ctx, j.req, j.base)
	if t := j.prefix.tokens; t.Whole {
		j.req.PromptTokens = len(t.IDs)
	}
	span.SetAttributes(attribute.Bool("tandem.tokens_known", j.prefix.known), attribute.Int("tandem.prompt_tokens", j.req.PromptTokens))
}

// wait holds the request in the queue until there is a place for it.
func (o *Orchestrator) wait(ctx context.Context, req *Request) (p *place, err error) {
	_, span := o.Tracer.Start(ctx, "wait")
	defer func() { endSpan(span, err) }()
	return o.Queue.Enter(ctx, req)
}

// serve tries until an attempt succeeds, the request is at fault, or nothing is
// left to try.
func (o *Orchestrator) serve(ctx context.Context, j *journey) (*Answer, error) {
	for {
		again := j.isAgain()
		a, err := o.bindPatiently(ctx, j)
		if !again {
			o.Metrics.wait.WithLabelValues(j.req.Model).Observe(j.queued.Seconds())
		}
		if err != nil {
			return nil, j.lastErrorOr(err)
		}
		bound := time.Now()
		answer, failed := o.attempt(ctx, j, a)
		if failed == nil {
			o.firsts.trials.note(j.base, time.Now())
			if answer.leg != nil && len(j.tried) == 0 && !j.resumed {
				o.firsts.came(&a.chosen.Terms, time.Since(bound))
			}
			return answer, nil
		}
		if (failed.lostConnection() || failed.engineDied()) && o.died(ctx, j, failed.Server, j.death(failed), failed.engineDied()) {
			return nil, ErrQuarantined
		}
		if !o.again(j, failed) {
			return nil, failed
		}
	}
}

// bind gives the request its servers, claimed: when it is its turn, or at once where it
// has had its turn already or its model generates nothing.
func (o *Orchestrator) bind(ctx context.Context, j *journey) (a assignment, err error) {
	ctx, span := o.Tracer.Start(ctx, "choose")
	defer func() { endSpan(span, err) }()
	if o.Late == nil || j.isAgain() || !j.req.Dialect.Split {
		a, err = o.choose(j)
	} else {
		start := time.Now()
		a, err = o.Late.Bind(ctx, j, j.base)
		j.queued += time.Since(start)
	}
	if err != nil {
		return assignment{}, err
	}
	span.SetAttributes(
		attribute.String("tandem.prefill", a.chosen.Prefill),
		attribute.String("tandem.decode", a.chosen.Decode),
		attribute.Float64("tandem.predicted_ms", float64(a.chosen.Terms.Total().Microseconds())/1000))
	return a, nil
}

// choose picks the cheapest alternative that is left and claims its servers. A
// server that refuses the claim is left out and the choice made again.
func (o *Orchestrator) choose(j *journey) (assignment, error) {
	refused := make(map[string]bool)
	anyway := false
	for {
		now := time.Now()
		view := o.look(j, refused, now)
		view.anyway = anyway
		chosen, ok := o.Cost.Choose(o.demand(j, now), &view.field, rand.IntN)
		if !ok && len(j.broke) > 0 && !j.back {
			j.back = true // no other can take it, and whom it broke on may be well again
			continue
		}
		if !ok && len(refused) > 0 && !anyway {
			// Only servers under proof are left: one of them is better than none.
			anyway = true
			clear(refused)
			continue
		}
		if !ok {
			return assignment{}, view.missing()
		}
		if j.late(j.firsts.by(&chosen.Terms), now) {
			return assignment{}, ErrDeadline
		}
		a, err := o.claim(j, &view, chosen)
		if err != nil {
			refused[a.refusedBy] = true
			continue
		}
		o.bound(j, &view, &a, now)
		return a, nil
	}
}

// bound notes a request's servers and why they were chosen.
func (o *Orchestrator) bound(j *journey, v *view, a *assignment, now time.Time) {
	o.firsts.trials.note(j.base, now)
	if a.prefill != nil {
		j.leases = append(j.leases, a.prefill)
	}
	j.leases = append(j.leases, a.decode)
	o.noteHits(j, v, a.chosen)
	a.reason = j.aloneReason(v, a.chosen)
	if a.chosen.Prefill == "" {
		o.Metrics.alone.WithLabelValues(a.reason).Inc()
	}
	differ := ""
	if a.reason == NoPair {
		differ = v.differ(j.base)
	}
	field := v.field
	field.Prefill, field.Decode = slices.Clone(field.Prefill), slices.Clone(field.Decode)
	j.choices = append(j.choices, Choice{
		Demand: o.demand(j, now), Field: field, Chosen: a.chosen, Reason: a.reason, Differ: differ,
		Panic: v.anyway || v.prefillPanic || v.decodePanic,
	})
}

// demand is what the choice knows of a request.
func (o *Orchestrator) demand(j *journey, now time.Time) Demand {
	d := Demand{PromptTokens: j.req.PromptTokens, OutputTokens: j.req.OutputTokens, Waited: now.Sub(j.arrived)}
	d.TTFT, d.ITL = o.Config.SLO(j.req, j.base)
	d.Objective = o.Config.Objective.of(j.req, j.base)
	return d
}

// died looks whether a server that lost its connection is dead, unless its engine has said
// so; takes it out if it is, and reports whether the request has thereby killed one too
// many.
func (o *Orchestrator) died(ctx context.Context, j *journey, id string, how death, certain bool) (quarantined bool) {
	for _, s := range o.Fleet.Servers() {
		if s.ID() != id || !certain && !s.Dead(ctx) {
			continue
		}
		reason := "connection lost and refused"
		if certain {
			reason = "its engine says that it is dead"
		}
		s.MarkDown(reason)
		quarantined = o.Suspects.Died(j.came.Fingerprint(), how, time.Now())
		o.Log.Error("a server died with a request in flight", "request_id", j.req.ID, "server", id,
			"fingerprint", fmt.Sprintf("%016x", j.came.Fingerprint()), "cause", how.cause, "quarantined", quarantined)
	}
	return quarantined
}

// again says whether a failed leg is followed by another try, and keeps what the
// next choice must know.
func (o *Orchestrator) again(j *journey, failed *LegError) bool {
	j.failed(failed)
	if failed.Kind == Refused || failed.Kind == Gone || failed.Kind == Ours {
		return false
	}
	if j.freeRetry {
		j.freeRetry = false
		return true
	}
	if j.retries >= o.Config.MaxRetries {
		return false
	}
	if !o.Budget.Retry(time.Now()) {
		o.Metrics.exhausted.Inc()
		return false
	}
	j.retries++
	o.Metrics.retries.WithLabelValues(string(failed.Leg), string(failed.Kind)).Inc()
	o.Log.Warn("leg failed, trying again", "request_id", j.req.ID, "leg", string(failed.Leg),
		"server", failed.Server, "kind", string(failed.Kind), "error", failed.Error())
	return true
}

// remember keeps the decision for those who ask why.
func (o *Orchestrator) remember(j *journey, err error) {
	outcome := "served"
	if err != nil {
		outcome = err.Error()
	}
	o.Decisions.Add(Decision{
		RequestID: j.req.ID, Model: j.req.Model, API: j.req.Dialect.Name, At: j.arrived,
		Choices: j.choices, Outcome: outcome,
	})
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
