package pd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// maxContinuations is how often one stream is continued continueOnAnotherPair.
const maxContinuations = 2

var (
	errOften    = errors.New("it was continued too often")
	errNoBudget = errors.New("the budget of retries is spent")
)

// journey begins the state of a request, with a transcript where its stream may be
// continued.
func (o *Orchestrator) journey(req *Request, arrived time.Time) *requestState {
	j := newRequestState(req, arrived)
	j.base = o.BaseOf(req.Model)
	j.alone = j.alone || o.Suspects.DiedOfHandoff(j.came, arrived)
	if !o.Config.Migrate || !req.Stream || req.Aggregated {
		return j
	}
	m, _ := o.Fleet.Model(req.Model) // its zero value is a length that is not known
	j.transcript = transcript.New(transcript.Request{
		Dialect: req.Dialect, Body: req.Body, MaxOutput: req.MaxOutput, MaxField: req.MaxField, HideUsage: req.HideUsage,
	}, m.MaxModelLen, o.Config.MigrateByText)
	return j
}

// resume continues a stream that broke after its first content event: the prompt
// and what was told go to another pair as token ids, and its first content event
// comes back. It draws on the budget of retries, so that a pool that dies does not
// bury the rest under its streams. Where only the end of the stream is missing, that is
// what comes back.
func (o *Orchestrator) resume(ctx context.Context, j *requestState, broken *BrokenStreamError) (next *legStream, ending []byte, err error) {
	certain := broken.engineDied()
	if (certain || !errors.Is(broken.Err, errErrorEvent)) && o.quarantineIfServerDied(ctx, j, j.servedBy, death{server: j.servedBy, cause: "it was decoding"}, certain) {
		o.Metrics.migrations.WithLabelValues("refused").Inc()
		return nil, nil, ErrQuarantined
	}
	if ending := j.transcript.Ending(); ending != nil {
		o.Metrics.migrations.WithLabelValues("ended").Inc()
		return nil, ending, nil
	}
	rest, err := j.transcript.Continue()
	if err == nil && j.continuations >= maxContinuations {
		err = errOften
	}
	if err != nil {
		o.Metrics.migrations.WithLabelValues("refused").Inc()
		o.Log.Warn("stream broke, it cannot be continued", "request_id", j.req.ID, "server", j.servedBy, "reason", err.Error())
		return nil, nil, err
	}
	if !o.Budget.Retry(time.Now()) {
		o.Metrics.exhausted.Inc()
		o.Metrics.migrations.WithLabelValues("no_budget").Inc()
		return nil, nil, errNoBudget
	}
	next, err = o.continueOnAnotherPair(ctx, j, j.came.continued(rest), broken)
	return next, nil, err
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
	return transcript.Engine{Name: cmp.Or(connector.Of(server).Engine, server.Load().Engine), MayReportIDs: server.TellsTokenIDs()}
}

// continueOnAnotherPair sends the rest of a stream to another pair.
func (o *Orchestrator) continueOnAnotherPair(ctx context.Context, j *requestState, rest *Request, broken *BrokenStreamError) (*legStream, error) {
	j.continuations++
	next := newRequestState(rest, j.arrived)
	next.transcript, next.continues, next.choices = j.transcript, true, j.choices
	next.base, next.came = j.base, j.came
	j.broke = append(j.broke, j.servedBy)
	next.broke = j.broke
	o.locateRest(ctx, j, next)
	o.Log.Warn("stream broke, continuing it continueOnAnotherPair", "request_id", j.req.ID, "server", j.servedBy,
		"tokens", j.transcript.TokensBefore(), "error", broken.Err.Error())
	answer, err := o.serve(ctx, next)
	j.choices, j.servedBy = next.choices, next.servedBy
	o.remember(j, err)
	if err != nil {
		next.release()
		o.Metrics.migrations.WithLabelValues("failed").Inc()
		return nil, err
	}
	o.Metrics.migrations.WithLabelValues("continued").Inc()
	return answer.leg, nil
}

// locateRest finds what servers hold of a continuation's prompt: all of it by its ids, which
// are known. Where prompts are known by their text, or the text carries the answer on, it is
// what they hold of the prompt that the client sent, with which it begins.
func (o *Orchestrator) locateRest(ctx context.Context, j, next *requestState) {
	if !next.transcript.IsByText() {
		o.locate(ctx, next)
	}
	located := next.prefix != nil && next.prefix.known && len(next.prefix.tokens.Chunks) == 0
	if !located && j.prefix != nil {
		next.prefix = j.prefix.beginning()
	}
}
