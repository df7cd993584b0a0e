package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestFault_RefuseClosesTheListenerAndOpensItAgain(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.Control = "127.0.0.1:0" })
	keepAlive := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer keepAlive.CloseIdleConnections()
	health := func() error {
		resp, err := keepAlive.Get(e.URL() + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	must(t, health())
	resp, err := client.Post(e.ControlURL()+"/sim/faults", "application/json", strings.NewReader(`{"kind":"refuse"}`))
	must(t, err)
	resp.Body.Close()
	if err := health(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v, want connection refused", err)
	}
	if status, _ := get(t, e.ControlURL()+"/sim/state"); status != http.StatusOK {
		t.Errorf("control: status %d", status)
	}
	url := e.URL()
	e.ClearFaults()
	must(t, health())
	if e.URL() != url {
		t.Errorf("moved from %s to %s", url, e.URL())
	}
}

func TestFault_Status(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultStatus, Status: 503, Count: 2})
	var got []int
	for range 3 {
		status, raw := post(t, e, "/v1/chat/completions", chatBody(5, 3))
		got = append(got, status)
		if status == 503 && !bytes.Contains(raw, []byte(`"code":503`)) {
			t.Errorf("body %s", raw)
		}
	}
	if got[0] != 503 || got[1] != 503 || got[2] != 200 {
		t.Errorf("got %v", got)
	}
	if status, _ := get(t, e.URL()+"/health"); status != 200 {
		t.Errorf("health is %d: a zombie looks healthy", status)
	}
}

func TestFault_HitsOnlyItsLegOrPath(t *testing.T) {
	e := start(t, nil)
	prefillLeg := chatBody(30, 1).with(fields{"kv_transfer_params": fields{"do_remote_decode": true}})
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Leg: "prefill"})
	if status, _ := post(t, e, "/v1/chat/completions", prefillLeg); status != 500 {
		t.Errorf("prefill leg: %d", status)
	}
	if status, _ := post(t, e, "/v1/chat/completions", chatBody(30, 1)); status != 200 {
		t.Errorf("other: %d", status)
	}
	e.ClearFaults()
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Leg: "decode"})
	if status, _ := post(t, e, "/v1/chat/completions", prefillLeg); status != 200 {
		t.Errorf("prefill leg: %d", status)
	}
	if status, _ := post(t, e, "/v1/chat/completions", chatBody(30, 1)); status != 500 {
		t.Errorf("other: %d", status)
	}
	e.ClearFaults()
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Path: "/v1/models"})
	if status, _ := get(t, e.URL()+"/v1/models"); status != 500 {
		t.Errorf("models: %d", status)
	}
	if status, _ := post(t, e, "/v1/chat/completions", chatBody(30, 1)); status != 200 {
		t.Errorf("chat: %d", status)
	}
}

func TestFault_HangBeforeHeaders(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultHangBeforeHeaders})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Do(request(t, ctx, e, "/v1/chat/completions", chatBody(5, 3))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the handler is gone", func() bool { return e.State().ServerLoad == 0 })
}

func TestFault_HangAfterHeaders(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultHangAfterHeaders})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := client.Do(request(t, ctx, e, "/v1/chat/completions", chatBody(5, 3).with(fields{"stream": true})))
	must(t, err)
	defer resp.Body.Close()
	defer time.AfterFunc(300*time.Millisecond, cancel).Stop()
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("status %d, %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	if raw, err := io.ReadAll(resp.Body); err == nil || len(raw) > 0 {
		t.Errorf("got %q, %v", raw, err)
	}
}

func TestFault_DieAfterTokens(t *testing.T) {
	e := start(t, nil)
	want := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 20)).content()
	e.SetFault(Fault{Kind: FaultDieAfterTokens, Tokens: 5})
	events, err := stream(t, e, "/v1/chat/completions", chatBody(5, 20).with(fields{"stream": true}))
	if err == nil || len(events) != 6 { // the role, and five tokens
		t.Fatalf("%d events, error %v", len(events), err)
	}
	text := ""
	for _, event := range events {
		var chunk chatAnswer
		must(t, json.Unmarshal([]byte(event.data), &chunk))
		text += *chunk.Choices[0].Delta.Content
	}
	if !strings.HasPrefix(want, text) || text == "" {
		t.Errorf("got %q of %q", text, want)
	}
	if _, err := client.Do(request(t, t.Context(), e, "/v1/chat/completions", chatBody(5, 20))); err == nil {
		t.Error("an answer that is not streamed came whole")
	}
	eventually(t, "all is freed", func() bool { return e.State().KVBlocksUsed == 0 && e.State().ServerLoad == 0 })
}

func TestFault_EmptyStreamAndGarbage(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultEmptyStream, Count: 2})
	if events, err := stream(t, e, "/v1/chat/completions", chatBody(5, 3).with(fields{"stream": true})); err != nil || len(events) != 1 || events[0].data != "[DONE]" {
		t.Errorf("got %v, %v", events, err)
	}
	if status, raw := post(t, e, "/v1/chat/completions", chatBody(5, 3)); status != 200 || len(raw) != 0 {
		t.Errorf("got %d %q", status, raw)
	}
	e.SetFault(Fault{Kind: FaultGarbageSSE})
	status, raw := post(t, e, "/v1/chat/completions", chatBody(5, 3).with(fields{"stream": true}))
	if status != 200 || len(raw) == 0 || json.Valid(bytes.TrimPrefix(raw, []byte("data: "))) {
		t.Errorf("got %d %q", status, raw)
	}
}

func TestFault_Slow(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.TimeScale = 0.1 })
	time10 := func() time.Duration {
		begun := time.Now()
		ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 10))
		return time.Since(begun)
	}
	e.SetFault(Fault{Kind: FaultSlow, Factor: 20})
	if took := time10(); took < 100*time.Millisecond { // 0.1 x 20 x (16.6 + 9 x 5.7 ms)
		t.Errorf("took %v", took)
	}
}

func TestFault_DropAndWrongHandoff(t *testing.T) {
	p := start(t, func(cfg *Config) { cfg.Lease = 200 * time.Millisecond })
	d := start(t, nil)
	body := chatBody(60, 10)
	p.SetFault(Fault{Kind: FaultDropHandoff, Count: 1})
	dropped := ask[chatAnswer](t, p, "/v1/chat/completions", body.with(fields{"max_tokens": 1, "kv_transfer_params": fields{"do_remote_decode": true}}))
	if string(dropped.KVTransferParams) != "null" || p.State().KVBlocksUsed != 0 {
		t.Errorf("params %s, %d blocks", dropped.KVTransferParams, p.State().KVBlocksUsed)
	}
	p.SetFault(Fault{Kind: FaultWrongHandoff, Count: 1})
	params := prefill(t, p, body)
	decode(t, d, body, params)
	if s := d.State(); s.RecomputedByReason[rejectedRequest] != 1 {
		t.Errorf("recomputed %v", s.RecomputedByReason)
	}
	eventually(t, "the true hand-off expires", func() bool { s := p.State(); return s.HandoffsExpired == 1 && s.KVBlocksUsed == 0 })
}

func TestFault_Unhealthy(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultUnhealthy})
	if status, _ := get(t, e.URL()+"/health"); status != 503 {
		t.Errorf("health %d", status)
	}
	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 3))
}

func TestFault_RefuseWithACountResets(t *testing.T) {
	e := start(t, nil)
	e.SetFault(Fault{Kind: FaultRefuse, Count: 1})
	if _, err := client.Do(request(t, t.Context(), e, "/v1/chat/completions", chatBody(5, 3))); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 3))
}

func TestFault_ThatCannotWorkIsRefused(t *testing.T) {
	e := start(t, nil)
	for _, body := range []string{`{"kind":"nothing"}`, `{"kind":"status"}`, `{"kind":"slow"}`, `{"kind":"slow","faktor":3}`, `{"kind":"refuse","leg":"both"}`, `{`} {
		if status, raw := post(t, e, "/sim/faults", body); status != 400 {
			t.Errorf("%s: %d %s", body, status, raw)
		}
	}
	if n := len(e.State().Faults); n != 0 {
		t.Errorf("%d faults are set", n)
	}
}

func TestClose_CutsWhatIsUnderWay(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.TimeScale = 1 })
	e.SetFault(Fault{Kind: FaultHangBeforeHeaders, Count: 1})
	var wg sync.WaitGroup
	for range 3 { // one hangs, two run
		wg.Go(func() {
			resp, err := client.Do(request(t, t.Context(), e, "/v1/chat/completions", chatBody(5, 3000).with(fields{"stream": true})))
			if err != nil {
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // it breaks off
		})
	}
	eventually(t, "two run and one hangs", func() bool { s := e.State(); return s.Running == 2 && s.ServerLoad == 3 })
	must(t, e.Close())
	wg.Wait()
}
