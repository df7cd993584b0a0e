package spans

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/decision"
)

// StartRequest begins the trace of a request, as a part of the client's if the context has that.
func StartRequest(ctx context.Context, tracer trace.Tracer, id string, d *api.Dialect) (context.Context, trace.Span) {
	if isOff(tracer) {
		return ctx, trace.SpanFromContext(context.Background())
	}
	ctx, span := tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("tandem.request_id", id), attribute.String("tandem.api", d.Name))
	}
	return ctx, span
}

// Request is what is known of a request once it is admitted.
type Request struct {
	Model     string
	Dialect   *api.Dialect
	Stream    bool
	MaxOutput int    // tokens; 0 without a bound
	Class     string // of priority
	Tenant    string // "" where there are none
}

// RecordRequest records what was asked for.
func RecordRequest(span trace.Span, r Request) {
	span.SetAttributes(
		semconv.GenAIProviderNameKey.String("tandem"),
		semconv.GenAIRequestModel(r.Model), semconv.GenAIRequestStream(r.Stream),
		attribute.String("tandem.class", r.Class))
	if operation := operationOf(r.Dialect); operation != "" {
		span.SetAttributes(semconv.GenAIOperationNameKey.String(operation))
	}
	if r.MaxOutput > 0 {
		span.SetAttributes(semconv.GenAIRequestMaxTokens(r.MaxOutput))
	}
	if r.Tenant != "" {
		span.SetAttributes(attribute.String("tandem.tenant", r.Tenant))
	}
}

// operationOf is what the conventions call the operation of an API, "" where they have no name
// for it.
func operationOf(d *api.Dialect) string {
	switch d {
	case api.Chat, api.Responses, api.Messages:
		return semconv.GenAIOperationNameChat.Value.AsString()
	case api.Completions, api.Generate:
		return semconv.GenAIOperationNameTextCompletion.Value.AsString()
	case api.Embeddings, api.CohereEmbed:
		return semconv.GenAIOperationNameEmbeddings.Value.AsString()
	}
	return ""
}

// samplingHint is the attribute that the tail sampling of a collector may match: present on what
// is worth keeping. Where several hold, the last in this list is said.
const samplingHint = attribute.Key("tandem.sampling.hint")

const (
	overPredicted = "over_predicted" // its first token came much later than predicted
	overObjective = "over_objective" // its first token came later than its objective, or its tokens slower
	failedHint    = "failed"         // by our fault, or an engine's
)

// How much later than predicted a first token is out of the ordinary. Guesses: with a share of
// requests above some 5 % they hint at too much.
const (
	slowFactor = 2
	slowLeast  = 100 * time.Millisecond
)

// slowFirst is the hint for a first token that took so long: "" where it was in time. An objective of
// 0 is none.
func slowFirst(took, predicted, objective time.Duration) string {
	switch {
	case objective > 0 && took > objective:
		return overObjective
	case took > slowFactor*predicted && took-predicted > slowLeast:
		return overPredicted
	}
	return ""
}

// Root is the span of a request, for what happens while it is served. The zero value is that of a
// request that is not traced, and records nothing.
type Root struct{ span trace.Span }

// RootOf is the span that a context belongs to.
func RootOf(ctx context.Context) Root { return Root{trace.SpanFromContext(ctx)} }

func (r Root) isRecording() bool { return r.span != nil && r.span.IsRecording() }

// RecordFirst records when the first token of a stream was there, beside when it was predicted to be
// by the first choice of servers. Both are from the request's arrival on, as metrics count it.
func (r Root) RecordFirst(first *decision.Choice, took time.Duration) {
	if !r.isRecording() {
		return
	}
	predicted := first.Demand.Waited + first.Chosen.Terms.TTFT()
	r.span.SetAttributes(
		semconv.GenAIResponseTimeToFirstChunk(took.Seconds()),
		seconds("tandem.ttft_seconds", took), seconds("tandem.ttft_predicted_seconds", predicted))
	if objective := first.Demand.TTFT; objective > 0 {
		r.span.SetAttributes(seconds("tandem.ttft_objective_seconds", objective))
	}
	if hint := slowFirst(took, predicted, first.Demand.TTFT); hint != "" {
		r.span.SetAttributes(samplingHint.String(hint))
	}
}

// RecordUsage records what engines counted of an answer that came from one attempt, and how fast its
// tokens came.
func (r Root) RecordUsage(c *decision.Choice) {
	if !r.isRecording() {
		return
	}
	u, m := &c.Measured.Usage, &c.Measured
	if u.Prompt.Known {
		r.span.SetAttributes(semconv.GenAIUsageInputTokens(u.Prompt.Tokens))
	}
	if u.Cached.Known {
		r.span.SetAttributes(semconv.GenAIUsageCacheReadInputTokens(u.Cached.Tokens))
	}
	if m.FirstToken <= 0 || u.Output.Tokens < 2 {
		return
	}
	each := (m.Whole - m.FirstToken) / time.Duration(u.Output.Tokens-1)
	r.span.SetAttributes(seconds("tandem.tpot_seconds", each))
	if objective := c.Demand.ITL; objective > 0 {
		r.span.SetAttributes(seconds("tandem.itl_objective_seconds", objective))
		if each > objective {
			r.span.SetAttributes(samplingHint.String(overObjective))
		}
	}
}

// RecordAttempts records how many times servers were chosen, and how many of them for the rest of a
// stream that broke.
func (r Root) RecordAttempts(attempts, continuations int) {
	if r.isRecording() {
		r.span.SetAttributes(attribute.Int("tandem.attempts", attempts), attribute.Int("tandem.continuations", continuations))
	}
}

// Outcome is how a request ended.
type Outcome struct {
	Model   string // as metrics have it
	Path    string // how it came
	Outcome string // "ok", "client_gone", or a kind of failure
	Status  int    // that the client got
	Output  int    // tokens of the answer; negative: not known
}

// EndRequest ends the span of a request. Status 500 and beyond, and a stream that broke, are failures
// that tail sampling is to keep; a client's own mistakes are not.
func EndRequest(span trace.Span, o Outcome) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("tandem.model", o.Model), attribute.String("tandem.outcome", o.Outcome),
		attribute.String("tandem.path", o.Path), semconv.HTTPResponseStatusCode(o.Status))
	if o.Output >= 0 {
		span.SetAttributes(semconv.GenAIUsageOutputTokens(o.Output))
	}
	if o.Outcome == "ok" || o.Outcome == "client_gone" {
		return
	}
	span.SetStatus(codes.Error, o.Outcome)
	span.SetAttributes(failedAs(o.Outcome))
	if o.Status >= 500 || o.Status < 400 {
		span.SetAttributes(samplingHint.String(failedHint))
	}
}
