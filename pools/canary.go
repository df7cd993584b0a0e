package pools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// canary proves a server for one leg with a tiny generation of the gateway's own,
// so that no client's request has to: when its ejection is over, or when a failure
// left it in doubt. It has a goroutine of its own: a generation that hangs must
// not keep health from being asked.
type canary struct {
	prober  // whose client has no time limit here
	leg     Role
	breaker *breaker
}

// run proves whenever the breaker asks for it, until ctx ends.
func (c *canary) run(ctx context.Context) {
	for {
		var due <-chan time.Time // never, while no canary is due
		if at, wanted := c.breaker.canaryDue(c.cfg.ProbeInterval); wanted {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-c.breaker.changed:
		case <-due:
			if !c.live.Health().Up || !c.live.turn.enter() {
				Pause(ctx, c.cfg.ProbeInterval) // a server that is down or sleeps is not asked
				continue
			}
			c.prove(ctx)
			c.live.turn.leave(time.Now())
		}
	}
}

func (c *canary) prove(ctx context.Context) {
	was, began := c.breaker.out(), time.Now()
	err := c.generateInTime(ctx)
	if errors.Is(err, context.DeadlineExceeded) && (c.breaker.servedSince(began) || c.live.workedSince(began)) {
		err = errCanaryBusy // it was not answered in time, but others were, or had tokens
	}
	if ctx.Err() != nil {
		return
	}
	if outOfDescriptors(err) {
		Pause(ctx, c.cfg.ProbeInterval) // and it is still due
		return
	}
	now := time.Now()
	away := c.breaker.judge(err, now)
	switch {
	case err == nil && was:
		c.live.returned(c.leg, away, c.cfg.SlowStart, now)
		c.log.Info("server proved by a canary", "leg", c.leg.String(), "away", away.String())
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			c.live.fall(Hangs) // what others wait for there may not come either
		}
		c.log.Warn("canary failed", "leg", c.leg.String(), "error", probeReason(err))
	}
}

// generateInTime is generate, with context.DeadlineExceeded when it takes too long.
func (c *canary) generateInTime(ctx context.Context) error {
	ctx, cancel := withOwnTimeout(ctx, c.patience(time.Now()))
	defer cancel()
	err := c.generate(ctx)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

// generate runs one generation on the server. An engine that refuses the request
// is alive and may serve others: its clients' requests will tell.
func (c *canary) generate(ctx context.Context) error {
	req, err := c.request(ctx)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "tandem")
	req.Header.Set("X-Request-Id", "tandem-canary-"+uuid.NewString())
	if c.spec.Rank != nil {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(*c.spec.Rank))
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	c.live.Heard(time.Now())
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
		return fmt.Errorf("%w: %d", errCanaryBusy, status)
	case status >= 400 && status < 500:
		return nil
	default:
		return fmt.Errorf("%w: %d", errWrongAnswer, status)
	}
}

// request is what the engine is asked for: a generation, where it takes one without
// a partner. SGLang's disaggregation does not, but makes a token for its own health
// check (/health_generate, http_server.py); a P2pNccl prefill fails at a request id
// without addresses, so that it is only asked for its health.
func (c *canary) request(ctx context.Context) (*http.Request, error) {
	connector := c.live.connectorOf(c.spec)
	switch {
	case connector == "sglang":
		return http.NewRequestWithContext(ctx, http.MethodGet, c.spec.URL+"/health_generate", nil)
	case connector == "p2p-nccl" && c.leg == Prefill:
		return http.NewRequestWithContext(ctx, http.MethodGet, c.spec.URL+"/health", nil)
	}
	body := canaryBody(baseModel(c.live.Health().Models))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.spec.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// patience is how long a canary may take: on the prefill leg it waits behind what
// was sent there before.
func (c *canary) patience(now time.Time) time.Duration {
	patience := c.cfg.Breaker.Probe
	if c.leg == Prefill {
		patience += min(3*c.live.OwnInFlight(Prefill, now).Queue, 3*patience)
	}
	return patience
}

// canaryBody asks for one token, on either leg, and for no hand-off: nobody would fetch it,
// and vLLM keeps its blocks for the whole lease, whether a prefill ends by length or by a
// stop (vllm nixl/pull_scheduler.py, request_finished).
func canaryBody(model string) []byte {
	data, _ := json.Marshal(struct { // strings and numbers always encode
		Model       string  `json:"model"`
		Prompt      string  `json:"prompt"`
		MaxTokens   int     `json:"max_tokens"`
		Temperature float64 `json:"temperature"`
	}{Model: model, Prompt: "ping", MaxTokens: 1})
	return data
}

// baseModel is the first model that is no adapter.
func baseModel(models []Model) string {
	for _, m := range models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}

// How a canary fails, beside not being answered.
var (
	errWrongAnswer = errors.New("wrong answer to a canary") // certain: the server works, and wrongly
	errCanaryBusy  = errors.New("server too busy for a canary")
)

// generated checks that an answer is a completion.
func generated(body []byte) error {
	var answer struct {
		Choices []json.RawMessage `json:"choices"`
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Choices) == 0 {
		return fmt.Errorf("%w: no completion", errWrongAnswer)
	}
	return nil
}
