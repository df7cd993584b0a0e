package pd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// maxContinuations is how often one stream is continued elsewhere.
const maxContinuations = 2

var (
	errContinuedTooOften = errors.New("it was continued too often")
	errNoBudget          = errors.New("the budget of retries is spent")
)

// continuesStreamOf reports whether a request's stream that breaks comes to continueStream.
func (o *Orchestrator) continuesStreamOf(st *requestState) bool {
	return st.transcript != nil && o.Config.ContinueStreams
}

// continueStream continues a stream that broke after its first content event: the prompt
// and what was sent go to another pair as token ids, and its first content event
// comes back. It draws on the budget of retries, so that a pool that dies does not
// bury the rest under its streams. Where only the end of the stream is missing, that is
// what comes back.
func (o *Orchestrator) continueStream(ctx context.Context, st *requestState, broken *BrokenStreamError) (next *Stream, ending []byte, err error) {
	last := st.bindings[len(st.bindings)-1]
	last.span.Fail("broken_stream", broken.Status, broken) // its stream ends when another one has begun
	last.choice.Outcome = broken.Error()
	at := time.Now()
	killed := o.markDownIfStreamKilled(ctx, st.servedBy, broken)
	if killed && o.recordDeath(st.client.Fingerprint(), st.req.ID, st.diedDecoding(st.servedBy), at) {
		o.Metrics.continuations.WithLabelValues("refused").Inc()
		return nil, nil, retry.ErrQuarantined
	}
	if ending := st.transcript.Ending(); ending != nil {
		o.Metrics.continuations.WithLabelValues("ended").Inc()
		return nil, ending, nil
	}
	rest, err := st.transcript.Continue()
	switch {
	case broken.ours(): // another engine would send the same event
		err = broken.Err
	case err == nil && st.continuations >= maxContinuations:
		err = errContinuedTooOften
	}
	if err != nil {
		o.Metrics.continuations.WithLabelValues("refused").Inc()
		o.logNotContinued(st, err)
		return nil, nil, err
	}
	taken, ok := o.Budget.TakeRetry(st.client.Tenant, broken.mayBeOfRequest(), time.Now())
	if !ok {
		o.Metrics.exhausted.Inc()
		o.Metrics.continuations.WithLabelValues("no_budget").Inc()
		return nil, nil, errNoBudget
	}
	next, err = o.continueOnAnotherPair(ctx, st, st.client.continued(rest), broken)
	var none *NoServerError
	if errors.As(err, &none) {
		o.Budget.GiveBack(taken)
	}
	return next, nil, err
}

func (o *Orchestrator) logNotContinued(st *requestState, why error) {
	o.Log.Warn("stream broke, it cannot be continued", "request_id", st.client.ID, "server", st.servedBy, "reason", why.Error())
}

// continued is the request for the rest of its answer.
func (r *Request) continued(c transcript.Continuation) *Request {
	rest := *r
	rest.Dialect, rest.Body = c.Dialect, c.Body
	rest.PromptTokens = cmp.Or(c.PromptTokens, r.PromptTokens+c.Delivered)
	if c.Left > 0 {
		rest.OutputTokens = min(r.OutputTokens, c.Left)
	}
	return &rest
}

// streamEngine is what a transcript needs to know of a server's engine.
func streamEngine(server *pools.Server) transcript.Engine {
	return transcript.Engine{Name: cmp.Or(connector.Of(server).Engine, server.Load().Engine), MayReportIDs: server.ReportsTokenIDs()}
}

// continueOnAnotherPair runs the rest of a stream: a request like any other, which has its
// place.
func (o *Orchestrator) continueOnAnotherPair(ctx context.Context, st *requestState, rest *Request, broken *BrokenStreamError) (*Stream, error) {
	o.Log.Warn("stream broke, going on with another leg", "request_id", st.client.ID, "server", st.servedBy,
		"tokens", st.transcript.TokensBefore(), "error", broken.Err.Error())
	rest.continues = st
	answer, err := o.Run(ctx, rest)
	if err != nil {
		o.Metrics.continuations.WithLabelValues("failed").Inc()
		return nil, err
	}
	o.Metrics.continuations.WithLabelValues("continued").Inc()
	return answer.Stream, nil
}

// locateRest finds what servers hold of a continuation's prompt: all of it by its ids, which
// are known. Where prompts are known by their text, or the text carries the answer on, it is
// what they hold of the prompt before, with which it begins.
func (o *Orchestrator) locateRest(ctx context.Context, st *requestState) {
	if !st.transcript.IsByText() {
		o.locatePrompt(ctx, st)
	}
	r, before := &st.bind, st.req.continues.bind.prefix
	located := r.prefix != nil && r.prefix.known && len(r.prefix.tokens.Chunks) == 0
	if !located && before != nil {
		r.prefix = before.beginning()
	}
}
