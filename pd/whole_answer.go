package pd

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
)

// answerForm is how a request's answer is read and relayed: whole, or as a stream. It is chosen
// once for each request.
type answerForm interface {
	// decode sends a decode leg and reads its answer: all of it, or up to its first content event.
	decode(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (*Answer, *LegError)
	// fromPrefill is the answer of what prefill said, which was all there is to say.
	fromPrefill(ctx context.Context, st *requestState, b *binding, data []byte) (*Answer, *LegError)
	// begin is the answer as far as prefill's token, behind which decode goes on; nil: it is not
	// relayed before it is whole.
	begin(ctx context.Context, st *requestState, b *binding) *Answer
	// relay hands the answer over to its reader.
	relay(ctx context.Context, st *requestState, b *binding)
}

func (o *Orchestrator) formOf(req *Request) answerForm {
	if req.Stream {
		return streamedAnswer{o}
	}
	return wholeAnswer{o}
}

// wholeAnswer is an answer in one body.
type wholeAnswer struct{ o *Orchestrator }

func (a wholeAnswer) decode(ctx context.Context, st *requestState, b *binding, leg Leg, id string, part connector.LegRequest) (relayed *Answer, broken *LegError) {
	o := a.o
	server := b.decode.Server()
	start := time.Now()
	b.decode.MarkSent(b.chosen.Terms.FirstStep()+time.Duration(st.req.OutputTokens)*b.chosen.Terms.Step, start)
	b.endsUnseen(st.req)
	wantsIDs, hideIDs := answerKV{o}.wantsIDs(st, b), false
	if wantsIDs {
		part.Body, hideIDs = askForIDs(part.Body)
	}
	// A response without the field is a stream to Hugging Face's transformers serve (5.19.0,
	// cli/serving/response.py, handle_request).
	if st.req.Dialect == api.Responses && part.Body.Get("stream") == nil {
		part.Body = part.Body.With(api.Set("stream", []byte("false")))
	}
	sample := o.Binder.beginTransfer(st, b, start)
	defer sample.end()
	if b.pull != nil {
		defer o.endPullUnseen(b)()
	}
	held := o.Answers.Hold(st.req.Tenant)
	defer func() {
		if relayed == nil {
			held.Release()
		}
	}()
	resp, data, failed := o.sendHeld(ctx, o.Config.AnswerTimeout, leg, server, st, st.req.Dialect.Path, id, part, &held)
	if failed != nil {
		return nil, failed
	}
	data, err := b.handoff.Complete(ctx, data)
	if err != nil {
		return nil, failedSend(ctx, leg, server.ID(), err)
	}
	text, metadata := data, ""
	types := resp.Header["Content-Type"] // by its canonical name: nothing is to be made of that for each answer
	isBinary := len(types) > 0 && st.req.Dialect.IsBinary(types[0])
	if isBinary {
		metadata = resp.Header.Get(api.BinaryMetadata)
		text = []byte(cmp.Or(metadata, "{}"))
	}
	answer, err := st.req.Dialect.ReadAnswer(text)
	if err != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Status: resp.StatusCode, Err: errNoAnswer}
	}
	if failed := failedInAnswer(ctx, leg, server.ID(), resp, &answer); failed != nil {
		return nil, failed
	}
	b.decode.RecordResult(nil)
	b.prediction.comeTrue()
	usage, _ := answer.Usage()
	usage = usage.UpTo(o.mostTokens(st))
	now := time.Now()
	sample.whole(now.Sub(start), usage.Output, now)
	usage = b.handoff.Usage(usage)
	b.endWhole(st.req, usage.Output, now)
	if handoff := answer.Handoff(); handoff != nil {
		var ids *answerkv.IDs
		if wantsIDs {
			ids = idsOf(data)
		}
		answerKV{o}.record(st, b, handoff, ids, usage)
	}
	clean := answer.Clean(a.recordPrompt(st, b, usage))
	if hideIDs {
		clean = api.WithoutIDs(clean, false)
	}
	whole, err := b.handoff.Whole(st.req.Dialect, &answer, clean, api.AsksForIDs(st.req.Body))
	if err != nil {
		return nil, &LegError{Leg: leg, Server: server.ID(), Kind: Broken, Err: err}
	}
	a.count(ctx, st, b, usage, now)
	b.releaseDecode()
	if isBinary {
		if metadata != "" {
			metadata = string(whole)
		}
		return &Answer{Status: resp.StatusCode, ContentType: api.BinaryType, Metadata: metadata, Body: data, Usage: usage, Held: held}, nil
	}
	return &Answer{Status: resp.StatusCode, ContentType: "application/json", Body: whole, Usage: usage, Held: held}, nil
}

// recordPrompt records what decode says of the prompt, and returns what the answer says of it in decode's stead: nothing,
// which leaves what decode said, where decode computed again what it was handed.
func (a wholeAnswer) recordPrompt(st *requestState, b *binding, usage api.Usage) api.PromptUsage {
	server := b.decode.Server()
	if usage.Cached.Known {
		server.RecordCachedTokens()
	}
	a.o.compareCounts(st, b, usage)
	side := b.promptSide()
	if side.Override && api.Recomputed(usage, side.Handed, server.ReportsCachedTokens()) {
		a.o.Metrics.recomputes.WithLabelValues(server.ID()).Inc()
		return api.PromptUsage{}
	}
	return side
}

// count records a whole answer that its client gets: what it is billed, and what is learned of it.
func (a wholeAnswer) count(ctx context.Context, st *requestState, b *binding, usage api.Usage, now time.Time) {
	counted := b.countedUsage(usage)
	a.o.countAnswer(st, counted, 0, now)
	st.measureUsage(b, counted, now)
	a.o.Binder.learnOutput(st, usage, now)
	a.o.Suspects.Acquit(st.client, b.handoff.HasKV())
	a.o.evaluateChoice(ctx, st, b)
}

// endsUnseen records, where decode computes the prompt, that only a whole answer will say that it has been.
func (b *binding) endsUnseen(req *Request) {
	if b.handoff == nil && req.OutputTokens > 1 {
		b.decode.EndsUnseen()
	}
}

// endWhole records, where decode computed the prompt, the whole answer of so many tokens, which is there now.
func (b *binding) endWhole(req *Request, output api.Count, now time.Time) {
	if b.handoff != nil || b.cut.done > 0 {
		return
	}
	held := min(b.cachedTokens, req.PromptTokens-1)
	if output == (api.Count{Tokens: 1, Known: true}) { // the first token is the answer
		b.decode.EndLocalPrefill(req.PromptTokens-held, held, b.batch, now)
		return
	}
	b.decode.EndLocalWhole(req.PromptTokens-held, held, output.Tokens, now)
}

func (a wholeAnswer) fromPrefill(_ context.Context, st *requestState, b *binding, data []byte) (*Answer, *LegError) {
	o := a.o
	usage, _ := st.req.Dialect.ReadUsage(data)
	usage = usage.UpTo(o.mostTokens(st))
	now := time.Now()
	o.countAnswer(st, usage, 0, now)
	st.measureUsage(b, usage, now)
	return &Answer{Status: http.StatusOK, ContentType: "application/json", Body: data, Usage: usage, Prefill: b.handoff.From.ID()}, nil
}

func (a wholeAnswer) begin(context.Context, *requestState, *binding) *Answer { return nil }

// relay has no more to do: the answer is complete.
func (a wholeAnswer) relay(_ context.Context, st *requestState, _ *binding) { st.whole = true }
