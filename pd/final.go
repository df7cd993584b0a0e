package pd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// final is the answer of what prefill said, which was all there is to say. Decode's place
// is given back unused.
func (o *Orchestrator) final(ctx context.Context, st *requestState, b *binding, data []byte) *LegError {
	b.decode.Release()
	usage, _ := st.req.Dialect.ReadUsage(data)
	from := b.handoff.From.ID()
	if !st.req.Stream {
		o.Metrics.countTokens(st, usage, usage.Cached, 0)
		b.answer = &Answer{Status: http.StatusOK, ContentType: "application/json", Body: data, Usage: usage, Prefill: from}
		return nil
	}
	body, err := api.ParseBody(data)
	if err != nil {
		return &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	events := bytes.NewReader(api.AsStream(st.req.Dialect, body, true))
	ctx, cancel := context.WithCancelCause(ctx)
	s := &legStream{
		dialect: st.req.Dialect, events: api.NewEventReader(events), body: io.NopCloser(events),
		ctx: ctx, cancel: cancel, idle: time.AfterFunc(o.Config.IdleTimeout, func() {}), idleLimit: o.Config.IdleTimeout,
		server: b.handoff.From, side: func() api.PromptUsage { return api.PromptUsage{} }, hideUsage: st.req.HideUsage,
		onGap: func(time.Duration) {}, transcript: st.transcript,
		onEnd: func(r StreamResult) { o.Metrics.countTokens(st, r.Usage, r.Usage.Cached, r.Events) },
	}
	if err := s.open(); err != nil {
		cancel(nil)
		return &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	b.answer = &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s, Prefill: from}
	return nil
}
