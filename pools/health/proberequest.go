package health

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// probeRequester proves a server for one leg with probe requests, tiny generations of the gateway's
// own, so that no client's request has to: when its ejection is over, or when a failure
// left it unresponsive. It has a goroutine of its own: a generation that hangs must
// not keep health from being asked.
type probeRequester struct {
	engine // without a time limit
	leg    pools.Role
	cfg    pools.Config
	log    *slog.Logger
}

// run proves whenever the breaker asks for it, until ctx ends.
func (p *probeRequester) run(ctx context.Context) {
	for {
		var due <-chan time.Time // never, while no probe request is due
		at, wanted, changed := p.server.ProbeRequestDue(p.leg)
		if wanted {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-due:
			if !p.server.Health().Up || !p.server.GPUShare().Enter() {
				pools.Pause(ctx, p.cfg.ProbeInterval) // a server that is down or sleeps is not asked
				continue
			}
			p.prove(ctx)
			p.server.GPUShare().Leave(time.Now())
		}
	}
}

func (p *probeRequester) prove(ctx context.Context) {
	proof := p.server.BeginProbeRequest(p.leg, time.Now())
	err := withinOwnTime(ctx, p.patience(time.Now()), p.generate)
	if ctx.Err() != nil {
		return
	}
	if outOfDescriptors(err) {
		pools.Pause(ctx, p.cfg.ProbeInterval) // and it is still due
		return
	}
	ejected, err := proof.End(err, time.Now())
	switch {
	case err != nil:
		p.log.Warn("probe request failed", "leg", p.leg.String(), "error", reason(err))
	case proof.Ejected():
		p.log.Info("server proved by a probe request", "leg", p.leg.String(), "ejected_for", ejected.String())
	}
}

// generate runs one generation on the server. An engine that refuses the request
// is alive and may serve others: its clients' requests will show.
func (p *probeRequester) generate(ctx context.Context) error {
	req, err := p.request(ctx)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "tandem")
	req.Header.Set("X-Request-Id", "tandem-canary-"+uuid.NewString())
	if p.server.Rank != nil {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(*p.server.Rank))
	}
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	p.server.RecordAlive(time.Now())
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return err
	}
	switch status := resp.StatusCode; {
	case status == http.StatusOK:
		if req.Method == http.MethodGet {
			return nil // there is no answer to look at
		}
		return generated(body)
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return &statusVerdict{breaker.ErrBusy, status}
	case status >= 400 && status < 500:
		return nil
	default:
		return &statusVerdict{breaker.ErrWrongAnswer, status}
	}
}

// statusVerdict is what an answer says of a server by its status, which its reason names too.
type statusVerdict struct {
	verdict error
	status  int
}

func (v *statusVerdict) Error() string { return fmt.Sprintf("%v: %d", v.verdict, v.status) }

func (v *statusVerdict) Is(target error) bool { return target == v.verdict }

// request is what the engine is asked for: a generation, where it takes one without
// a partner. SGLang's disaggregation does not, but makes a token for its own health
// check (/health_generate, http_server.py); a P2pNccl prefill fails at a request id
// without addresses, so that it is only asked for its health.
func (p *probeRequester) request(ctx context.Context) (*http.Request, error) {
	connector := p.server.Connector()
	switch {
	case connector == "sglang":
		return http.NewRequestWithContext(ctx, http.MethodGet, p.server.URL+"/health_generate", nil)
	case connector == "p2p-nccl" && p.leg == pools.Prefill:
		return http.NewRequestWithContext(ctx, http.MethodGet, p.server.URL+"/health", nil)
	}
	body := probeBody(baseModel(p.server.Health().Models))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.server.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// patience is how long a probe request may take: on the prefill leg it waits behind what
// was sent there before.
func (p *probeRequester) patience(now time.Time) time.Duration {
	patience := p.cfg.Breaker.Probe
	if p.leg == pools.Prefill {
		patience += min(3*p.server.OwnInFlight(pools.Prefill, now).Queue, 3*patience)
	}
	return patience
}

// probeBody asks for one token, on either leg, and for no hand-off: no server would fetch it,
// and vLLM keeps its blocks for the whole lease, whether a prefill ends by length or by a
// stop (vllm nixl/pull_scheduler.py, request_finished).
func probeBody(model string) []byte {
	data, _ := json.Marshal(struct { // strings and numbers always encode
		Model       string  `json:"model"`
		Prompt      string  `json:"prompt"`
		MaxTokens   int     `json:"max_tokens"`
		Temperature float64 `json:"temperature"`
	}{Model: model, Prompt: "ping", MaxTokens: 1})
	return data
}

// generated checks that an answer is a completion.
func generated(body []byte) error {
	var answer struct {
		Choices []json.RawMessage `json:"choices"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Choices) == 0 {
		return fmt.Errorf("%w: no completion", breaker.ErrWrongAnswer)
	}
	return nil
}
