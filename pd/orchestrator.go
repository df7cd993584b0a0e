package pd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

// Orchestrator runs requests. Its fields are set once, before the first Run.
type Orchestrator struct {
	Config        LegConfig
	Binder        *Binder
	Fleet         *pools.Fleet
	Transport     http.RoundTripper
	Queue         *Queue
	ScaleFromZero *ScaleFromZero // nil: a role without a server is an error at once
	Budget        *Budget
	Decisions     *Decisions
	Suspects      *Quarantine
	Metrics       *Metrics
	Tracer        trace.Tracer
	Log           *slog.Logger

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
	req.OutputTokens = o.Binder.Outputs.Expect(req)
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
func (o *Orchestrator) run(ctx context.Context, req *Request, p *queueEntry, placed time.Time) (*Answer, error) {
	j := o.journey(req, placed)
	j.waited, j.entry = p.queued, p
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
	if j.transcript != nil {
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
	base, _ := o.ScaleFromZero.WillServe(model)
	return cmp.Or(base, model)
}

// locate finds the tokens of the prompt, and with them what servers hold of it.
func (o *Orchestrator) locate(ctx context.Context, j *requestState) {
	if o.Binder.Locality == nil {
		return
	}
	_, span := o.Tracer.Start(ctx, "locate")
	defer span.End()
	j.prefix = o.Binder.Locality.know(ctx, j.req, j.base)
	if t := j.prefix.tokens; t.Complete {
		j.req.PromptTokens = len(t.IDs)
	}
	span.SetAttributes(attribute.Bool("tandem.tokens_known", j.prefix.known), attribute.Int("tandem.prompt_tokens", j.req.PromptTokens))
}

// wait holds the request in the queue until there is a place for it.
func (o *Orchestrator) wait(ctx context.Context, req *Request) (p *queueEntry, err error) {
	_, span := o.Tracer.Start(ctx, "wait")
	defer func() { endSpan(span, err) }()
	return o.Queue.Enter(ctx, req)
}

// serve tries until an attempt succeeds, the request is at fault, or nothing is
// departures to try.
func (o *Orchestrator) serve(ctx context.Context, j *requestState) (*Answer, error) {
	for {
		again := j.isAgain()
		a, err := o.Binder.Bind(ctx, j)
		if !again {
			o.Metrics.wait.WithLabelValues(j.req.Model).Observe(j.waited.Seconds())
		}
		if err != nil {
			return nil, j.lastErrorOr(err)
		}
		bound := time.Now()
		answer, failed := o.attempt(ctx, j, a)
		if failed == nil {
			o.Binder.firsts.trials.note(j.base, time.Now())
			if answer.leg != nil && len(j.tried) == 0 && !j.continues {
				o.Binder.firsts.came(&a.chosen.Terms, time.Since(bound))
			}
			return answer, nil
		}
		if (failed.lostConnection() || failed.engineDied()) && o.quarantineIfServerDied(ctx, j, failed.Server, j.death(failed), failed.engineDied()) {
			return nil, ErrQuarantined
		}
		if !o.again(j, failed) {
			return nil, failed
		}
	}
}

// quarantineIfServerDied looks whether a server that lost its connection is dead, unless its engine has said
// so; takes it out if it is, and reports whether the request has thereby killed one too
// many.
func (o *Orchestrator) quarantineIfServerDied(ctx context.Context, j *requestState, id string, how death, certain bool) (quarantined bool) {
	for _, s := range o.Fleet.Servers() {
		if s.ID() != id || !certain && !health.RefusesConnections(ctx, s) {
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
func (o *Orchestrator) again(j *requestState, failed *LegError) bool {
	j.failed(failed)
	if failed.Kind == Refused || failed.Kind == Gone || failed.Kind == Ours {
		return false
	}
	if j.retryWithoutBudget {
		j.retryWithoutBudget = false
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
func (o *Orchestrator) remember(j *requestState, err error) {
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
