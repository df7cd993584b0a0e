package pd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/deadline"
	"github.com/tandem-gateway/tandem/pools/health"
)

// Orchestrator runs requests. Its fields are set once, before the first Run.
type Orchestrator struct {
	Config        LegConfig
	Binder        *Binder
	Fleet         *pools.Fleet
	Transport     http.RoundTripper
	Queue         *queue.Queue
	ScaleFromZero *scalefromzero.Activator // nil: a role without a server is an error at once
	Budget        *retry.Budget
	Decisions     *decision.Records
	History       *history.History // nil: none is kept
	Suspects      *retry.Quarantine
	Answers       *enginehttp.AnswerBudget // of engines' long answers; nil: their memory has no bound
	Metrics       *Metrics
	Tracer        trace.Tracer
	Log           *slog.Logger
	HandoffKey    func() string // by which hand-offs of TensorRT-LLM are signed now; nil or "": they are not

	engines     connector.EngineIDs
	pulls       sharedPulls
	differences LogLimiter // of decode servers that have other tokens of a prompt than prefill: each prompt, while a chat template is rolled out
	wholeLegs   deadline.Set[wholeLeg]
	legs        sync.WaitGroup // what may end after its request: prefill legs beside a decode, looks at servers that may be dead
}

// Wait returns when no leg is under way any more. It is for after the last Run.
func (o *Orchestrator) Wait() { o.legs.Wait() }

// survivePanic is deferred in goroutines beside a request, where a panic would end the process.
func (o *Orchestrator) survivePanic(in, requestID string) {
	if p := recover(); p != nil {
		o.Log.Error("panic in "+in, "request_id", requestID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
}

// Run serves one request. Up to its first content event everything may be tried again on
// other servers; from then on its answer is relayed. The context ends when the client has
// left; with a streamed answer it must live as long as the stream. Errors: *NoServerError,
// *LegError, *ContextLengthError, those of the queue, ErrQuarantined, scalefromzero.ErrNoAdapter, or the context's.
func (o *Orchestrator) Run(ctx context.Context, req *Request) (*Answer, error) {
	st, err := o.wait(ctx, req)
	if err != nil {
		return nil, err
	}
	defer o.end(st) // also after a panic
	o.locate(ctx, st)
	for {
		b, err := o.assign(ctx, st)
		if err != nil {
			return nil, err
		}
		failed := o.prefill(ctx, st, b)
		if failed == nil {
			failed = o.decode(ctx, st, b)
		}
		if failed == nil {
			return o.relay(ctx, st, b), nil
		}
		b.prediction.takeBack()
		if err := o.tryAgain(ctx, st, failed); err != nil {
			o.recordDecision(st, err)
			return nil, err
		}
	}
}

// assign gives a request its servers, claimed; where it has none it waits for those that are
// started for it.
func (o *Orchestrator) assign(ctx context.Context, st *requestState) (*binding, error) {
	for {
		if err := o.checkContext(st); err != nil {
			o.endRetrying(st, err)
			return nil, err
		}
		b, err := o.choose(ctx, st)
		if err == nil {
			return b, nil
		}
		if err := o.awaitServers(ctx, st, err); err != nil {
			o.recordDecision(st, err)
			return nil, err
		}
		o.locate(ctx, st) // as if it had just come
	}
}

// wait admits a request and keeps it in the queue until there is a place for it. What
// continues a stream has its place.
func (o *Orchestrator) wait(ctx context.Context, req *Request) (*requestState, error) {
	if req.continues != nil {
		return req.continues.continuation(req), nil
	}
	arrived := time.Now()
	if o.Suspects.IsQuarantined(req, arrived) {
		return nil, retry.ErrQuarantined
	}
	req.OutputTokens = o.Binder.Outputs.Expect(req.Expected())
	req.Aggregated = req.Aggregated || truncatesByAnswer(req)
	entry, err := o.enterQueue(ctx, req)
	if err != nil {
		histogram.Observe(ctx, o.Metrics.wait.WithLabelValues(req.Model), time.Since(arrived).Seconds())
		return nil, err
	}
	o.Budget.CountRequest(req.Tenant, arrived)
	st := newRequestState()
	st.client, st.entry, st.arrived, st.span, st.memory = req, entry, arrived, spans.RootOf(ctx), req.Memory
	return st, nil
}

func (o *Orchestrator) enterQueue(ctx context.Context, req *Request) (entry *queue.Entry, err error) {
	_, span := spans.Start(ctx, o.Tracer, "wait")
	defer func() { spans.End(span, err) }()
	return o.Queue.Enter(ctx, queue.Request{
		Model: req.Model, Class: req.Class, Tenant: req.Tenant, Bytes: req.Body.Len(), Deadline: req.Deadline,
	})
}

// locate finds what is known of a request before it is bound: whose servers serve it, what
// may continue its stream, and the tokens of its prompt, with what servers hold of them.
func (o *Orchestrator) locate(ctx context.Context, st *requestState) {
	if st.bind.continues {
		o.locateRest(ctx, st)
		return
	}
	o.reset(st)
	o.locatePrompt(ctx, st)
}

// reset is a request before its first attempt.
func (o *Orchestrator) reset(st *requestState) {
	st.release()
	o.letGoCandidates(st)
	o.strandWaiting(st)
	returns, room := st.bind.returns, st.bind.room
	returns.lookAgain()
	*st = requestState{client: st.client, req: st.client, form: o.formOf(st.client), entry: st.entry, arrived: st.arrived, span: st.span, memory: st.memory, capacity: st.capacity, room: st.room}
	st.bind = bindRequest{req: st.client, room: room, base: o.BaseOf(st.client.Model), arrived: st.arrived, entry: st.entry, waited: st.entry.Waited, returns: returns}
	st.bind.firstFromPrefill = firstTokens{o}.mayBeFromPrefill(st.client)
	st.bind.tried.failsAtOneToken = failsAtOneToken(st.client)
	st.bind.tried.mustAggregate = st.client.Aggregated || st.bind.tried.failsAtOneToken || o.Suspects.DiedOfHandoff(st.client, st.arrived)
	if o.Config.ContinueStreams && st.client.Stream && !st.client.proxied {
		st.transcript, st.notContinued = newTranscript(o.Fleet, st.client, o.Config.ContinueByText)
	}
}

var errAggregated = errors.New("it asks for what one server alone can answer, as for n above 1")

// newTranscript is a transcript of what is said to a request, or why it could not be continued.
func newTranscript(fleet *pools.Fleet, req *Request, byText bool) (*transcript.Transcript, error) {
	if req.Aggregated {
		return nil, errAggregated
	}
	m, _ := fleet.Model(req.Model) // its zero value is a length that is not known
	return transcript.New(req.forTranscript(), m.MaxModelLen, byText)
}

// forTranscript is what a transcript needs to know of the request.
func (r *Request) forTranscript() transcript.Request {
	most, field := r.bound()
	return transcript.Request{Dialect: r.Dialect, Body: r.Body, MaxOutput: most, MaxField: field, HideUsage: r.HideUsage, OnlyText: r.OnlyText}
}

// defaultCompletionTokens bound a completion that does not say how long it may be (vllm 0.32
// entrypoints/openai/completion/protocol.py; the same in OpenAI's API).
const defaultCompletionTokens = 16

// bound is how many tokens the answer may have, 0 for as many as there is room for, and the field
// that says so. A completion of which it is null has no bound.
func (r *Request) bound() (tokens int, field string) {
	if r.MaxOutput == 0 && r.Dialect == api.Completions && r.Body.Get("max_tokens") == nil {
		return defaultCompletionTokens, "max_tokens"
	}
	return r.MaxOutput, r.MaxField
}

// locatePrompt finds the tokens of the prompt, and with them what servers hold of it.
func (o *Orchestrator) locatePrompt(ctx context.Context, st *requestState) {
	if o.Binder.Locality == nil {
		o.Metrics.countUnknown(st.req.Model, tokens.Off)
		return
	}
	_, span := spans.Start(ctx, o.Tracer, "locate")
	defer span.End()
	r := &st.bind
	r.prefix = o.Binder.Locality.findTokens(ctx, r.req, r.base)
	o.Binder.awaitIDs(ctx, r)
	r.setPromptTokens()
	o.Metrics.countUnknown(st.req.Model, r.prefix.unknown)
	spans.RecordPrompt(span, r.prefix.known && !r.prefix.isGuessed(), r.req.PromptTokens)
}

// choose gives the request its servers, claimed.
func (o *Orchestrator) choose(ctx context.Context, st *requestState) (*binding, error) {
	first := !st.bind.hadTurn()
	b, err := o.Binder.Bind(ctx, &st.bind)
	if first {
		histogram.Observe(ctx, o.Metrics.wait.WithLabelValues(st.req.Model), st.bind.waited.Seconds())
	}
	o.endRetrying(st, err)
	if err != nil {
		return nil, st.lastErrorOr(err)
	}
	if b.handoff == nil {
		o.strandWaiting(st)
	}
	st.recordBinding(b)
	if !st.client.proxied { // whose fallbacks are asked for when it has been chosen
		st.held += o.Decisions.Hold(&b.choice)
	}
	return b, nil
}

// strandWaiting gives up the hand-off that waits for another decode server, if one does: none can read
// it, or it is too old, or there is no other attempt.
func (o *Orchestrator) strandWaiting(st *requestState) {
	o.Metrics.countStranded(st.bind.tried.handoff)
	st.bind.tried.handoff = nil
}

// tryAgain returns nil if a failed leg is followed by another attempt, and else the error
// for the client.
func (o *Orchestrator) tryAgain(ctx context.Context, st *requestState, failed *LegError) error {
	if o.quarantineIfServerDied(ctx, st, failed) {
		return retry.ErrQuarantined
	}
	st.recordFailure(failed)
	if !st.shouldRetry(failed, o.Config.MaxRetries) || !o.takeRetry(st, failed) {
		return failed
	}
	return nil
}

// quarantineIfServerDied looks whether the server of a failed leg has died, and reports whether
// the request has thereby killed one too many.
func (o *Orchestrator) quarantineIfServerDied(ctx context.Context, st *requestState, failed *LegError) bool {
	if !failed.lostConnection() && !failed.engineDied() {
		return false
	}
	at := time.Now()
	died := o.markDownIfDead(ctx, failed.Server, failed.engineDied())
	return died && failed.mayBeRead() && o.recordDeath(st.client.Fingerprint(), st.req.ID, st.causeOfDeath(failed), at)
}

// markDownIfStreamKilled looks whether the server of a stream that broke has died, takes it out if it has, and
// reports whether it may have died of the stream's request.
func (o *Orchestrator) markDownIfStreamKilled(ctx context.Context, server string, broken *BrokenStreamError) (killed bool) {
	if !broken.lostConnection() && !broken.engineDied() {
		return false
	}
	return o.markDownIfDead(ctx, server, broken.engineDied()) && broken.mayBeRead()
}

// recordDeathBehind is for a stream that broke and is not continued: it looks whether the server has died, and counts
// that against the request. The client does not wait for the look. The request's fingerprint is made before it, while
// there is its text.
func (o *Orchestrator) recordDeathBehind(st *requestState, server string, broken *BrokenStreamError) {
	fingerprint, id, how, at := st.client.Fingerprint(), st.req.ID, st.diedDecoding(server), time.Now()
	o.legs.Go(func() {
		defer o.survivePanic("the look at a server that may be dead", id)
		if o.markDownIfStreamKilled(context.Background(), server, broken) {
			o.recordDeath(fingerprint, id, how, at)
		}
	})
}

func (st *requestState) diedDecoding(server string) retry.Death {
	return retry.Death{Server: server, Cause: "it was decoding", Sent: st.boundAt}
}

// relay gives the answer away.
func (o *Orchestrator) relay(ctx context.Context, st *requestState, b *binding) *Answer {
	o.Binder.deadlineProbes.Observe(st.bind.base, time.Now())
	o.recordDecision(st, nil)
	o.dropCandidates(st)
	b.answer.Timing = st.timing(b)
	b.answer.CachedTokens, b.answer.ComputedTokens = st.predictedCache()
	st.form.relay(ctx, st, b)
	return b.answer
}

// end gives back what a request holds, save what its stream does until that ends.
func (o *Orchestrator) end(st *requestState) {
	o.strandWaiting(st)
	if !st.streams {
		st.release()
		st.releaseText()
	}
	st.capacity.End()
	o.letGoCandidates(st)
	if !st.streams && st.entry != nil {
		o.Queue.Leave(st.entry)
	}
	st.giveRoomBack()
}

// awaitServers returns nil once a request that found no server may start over, as one that has
// just come: each role has a server that is up. Else it returns the error for the client: the
// one it was given where its model's servers will not come or have not come in time, or that of
// scalefromzero.Wait.
func (o *Orchestrator) awaitServers(ctx context.Context, st *requestState, err error) error {
	var none *NoServerError
	if !errors.As(err, &none) || st.bind.continues {
		return err
	}
	if !st.capacity.HasBegun() {
		wait, ok := o.ScaleFromZero.Enter(st.client.Model, st.client.Deadline, err)
		if !ok {
			return err
		}
		st.capacity = wait
	}
	if err := st.capacity.Await(ctx, o.Fleet, o.Queue, st.entry); err != nil {
		return err
	}
	st.arrived = time.Now()
	return nil
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

// markDownIfDead looks whether a server that lost its connection is dead, unless its engine has
// said so, and takes it out if it is.
func (o *Orchestrator) markDownIfDead(ctx context.Context, id string, certain bool) (died bool) {
	for _, s := range o.Fleet.Servers() {
		if s.ID() != id || !certain && !health.RefusesConnections(ctx, s) {
			continue
		}
		reason := "connection lost and refused"
		if certain {
			reason = "its engine says that it is dead"
		}
		s.MarkDown(reason)
		died = true
	}
	return died
}

// recordDeath keeps that a server died with a request in flight on it, and reports whether the
// request has thereby killed one too many. The server was seen to fail at a time, before it was looked at: the
// request may be tried again meanwhile.
func (o *Orchestrator) recordDeath(fingerprint uint64, id string, how retry.Death, at time.Time) (quarantined bool) {
	quarantined = o.Suspects.RecordDeath(fingerprint, how, at)
	o.Log.Error("a server died with a request in flight", "request_id", id, "server", how.Server,
		"fingerprint", fmt.Sprintf("%016x", fingerprint), "cause", how.Cause, "quarantined", quarantined)
	return quarantined
}

// shouldRetry reports whether a failed leg may be followed by another try, as far as the
// request goes.
func (st *requestState) shouldRetry(failed *LegError, maxRetries int) bool {
	if failed.Kind == Refused || failed.Kind == Gone || failed.Kind == Ours {
		return false
	}
	return st.retryWithoutBudget || st.costsNoRetry(failed) || st.bind.tried.retries < maxRetries
}

// costsNoRetry reports whether a failed leg was no work for an engine, and its server is down: half of a fleet that goes
// at once costs requests milliseconds. Behind a decode leg that found nobody prefill is asked again, unless what it has
// computed is handed over to another decode server.
func (st *requestState) costsNoRetry(failed *LegError) bool {
	alone := len(st.bindings) > 0 && st.bindings[len(st.bindings)-1].prefill == nil
	return failed.foundNobody() && (failed.Leg == PrefillLeg || alone || st.bind.tried.handoff != nil)
}

// takeRetry takes a retry out of the budget, false if that is spent. One that was expected
// costs nothing, and neither does one behind a leg that found nobody. It is made once there is another server (endRetrying).
func (o *Orchestrator) takeRetry(st *requestState, failed *LegError) bool {
	if st.retryWithoutBudget {
		st.retryWithoutBudget = false
		return true
	}
	if st.costsNoRetry(failed) {
		st.bind.tried.refusals++
		st.retrying = retrying{failed: failed}
		return true
	}
	taken, ok := o.Budget.TakeRetry(st.client.Tenant, failed.mayBeOfRequest(), time.Now())
	if !ok {
		o.Metrics.exhausted.Inc()
		return false
	}
	st.bind.tried.retries++
	st.retrying = retrying{failed, taken}
	return true
}

// endRetrying counts a retry where there is another server for it. Else it is given back, for requests that have one:
// the budget is that of all models.
func (o *Orchestrator) endRetrying(st *requestState, notFound error) {
	failed := st.retrying.failed
	if failed == nil {
		return
	}
	said := "leg failed, going on with another server"
	if notFound == nil {
		o.Metrics.retries.WithLabelValues(string(failed.Leg), string(failed.Kind)).Inc()
	} else {
		said = "leg failed, and there is no other server"
		o.Budget.GiveBack(st.retrying.taken)
	}
	o.Log.Warn(said, "request_id", st.req.ID, "leg", string(failed.Leg), "server", failed.Server, "kind", string(failed.Kind), "error", failed.Error())
	st.retrying = retrying{}
}

// recordDecision keeps the decision for /debug/decisions.
func (o *Orchestrator) recordDecision(st *requestState, err error) {
	outcome := decision.Served
	if st.client.proxied {
		outcome = decision.Picked
	}
	if err != nil {
		if outcome = outcomeOf(err); outcome != decision.ClientLeft {
			o.recordFailure(st)
		}
	}
	st.span.RecordAttempts(len(st.earlier)+len(st.bindings), st.continuations)
	room := choicesPool.Get().(*[]decision.Choice)
	*room = st.appendChoices((*room)[:0])
	record := decision.Record{
		RequestID: st.client.ID, Model: st.client.Model, API: st.client.Dialect.Name, At: st.arrived,
		Choices: *room, Outcome: outcome, Ended: err != nil || !st.client.Stream && !st.client.proxied,
	}
	st.decision, st.packed = o.Decisions.Replace(st.decision, record), record.Packs() // a continuation has that of its request
	clear(*room)
	choicesPool.Put(room)
}

// dropCandidates lets go of the servers that were not chosen, once the decision is recorded: an answer may take
// minutes, and of a thousand servers the request would hold half a megabyte and a table of all pairs.
func (o *Orchestrator) dropCandidates(st *requestState) {
	for _, b := range st.bindings {
		b.choice.KeepOnlyChosen()
	}
	o.letGoCandidates(st)
}

// letGoCandidates gives back what is counted of the servers that the request's were chosen from.
func (o *Orchestrator) letGoCandidates(st *requestState) {
	o.Decisions.LetGo(st.held)
	st.held = 0
}
