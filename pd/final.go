package pd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// final answers with what prefill said, which was all there is to say. Decode's place
// is given back unused.
func (o *Orchestrator) final(ctx context.Context, j *requestState, a binding, data []byte) (*Answer, *LegError) {
	a.decode.Release()
	usage, _ := j.req.Dialect.ReadUsage(data)
	from := a.handoff.From.ID()
	if !j.req.Stream {
		o.countTokens(j, usage, usage.Cached, 0)
		return &Answer{Status: http.StatusOK, ContentType: "application/json", Body: data, Usage: usage, Prefill: from}, nil
	}
	body, err := api.ParseBody(data)
	if err != nil {
		return nil, &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	events := bytes.NewReader(api.AsStream(j.req.Dialect, body, true))
	ctx, cancel := context.WithCancelCause(ctx)
	s := &legStream{
		dialect: j.req.Dialect, events: api.NewEventReader(events), body: io.NopCloser(events),
		ctx: ctx, cancel: cancel, idle: time.AfterFunc(o.Config.IdleTimeout, func() {}), idleLimit: o.Config.IdleTimeout,
		server: a.handoff.From, side: func() api.PromptUsage { return api.PromptUsage{} }, hideUsage: j.req.HideUsage,
		onGap: func(time.Duration) {}, transcript: j.transcript,
		onClose: func(r StreamResult) { o.countTokens(j, r.Usage, r.Usage.Cached, r.Events) },
	}
	if err := s.open(); err != nil {
		cancel(nil)
		return nil, &LegError{Leg: PrefillLeg, Server: from, Kind: Broken, Err: err}
	}
	return &Answer{Status: http.StatusOK, ContentType: "text/event-stream", leg: s, Prefill: from}, nil
}
