package picker

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// heldServer is the address of a server of the model that answers nothing until answers is closed.
func heldServer(t *testing.T, answers <-chan struct{}) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answers:
		case <-r.Context().Done():
			return
		}
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"` + testModel + `"}]}`))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A picker that has begun to listen and has no answer to its first probes yet does not refuse what comes: it waits
// for them.
func TestRestartedPicker_ARequestBeforeTheFirstProbesIsNotRefused(t *testing.T) {
	for name, c := range map[string]struct{ unknown, prefill, body bool }{
		"no server was probed":                    {body: true},
		"decode was not probed":                   {body: true, prefill: true},
		"no server was probed, no body":           {},
		"no source of servers has said its":       {body: true, unknown: true},
		"no source of servers has said its, none": {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			answers := make(chan struct{})
			answer := sync.OnceFunc(func() { close(answers) })
			t.Cleanup(answer)
			specs := []pools.Spec{{URL: heldServer(t, answers), Role: pools.Decode, Connector: "llmd-sidecar"}}
			if c.prefill {
				specs = append(specs, pools.Spec{URL: upServer(t), Role: pools.Prefill, Connector: "llmd-sidecar"})
			}
			found := specs
			if c.unknown {
				specs = nil
			}
			f := newPicker(t, setup{specs: specs, pools: func(p *pools.Config) { p.ProbeTimeout = time.Hour }})
			f.pd.Binder.Config.UnresponsiveWait = time.Hour
			arrived := func() {}
			if c.unknown {
				arrived = f.fleet.ExpectServers()
			}
			if c.prefill {
				f.eventually("prefill is up", func() bool { return f.fleet.Servers()[1].Health().Up })
			}
			p := f.open()
			if c.body {
				p.request(chatPath, chatOf(10, ""))
			} else {
				p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
					Headers: headerList(":method", "GET", ":path", "/v1/models"), EndOfStream: true,
				}}})
			}
			answered := make(chan *extproc.ProcessingResponse, 1)
			go func() {
				m, _ := p.stream.Recv() // nil where the stream breaks
				answered <- m
			}()
			f.eventually("it waits, or has its answer", func() bool {
				return len(answered) > 0 || f.metric("tandem_unresponsive_waits_total") == 1
			})
			if f.gateway.Ready() {
				t.Error("the picker says that it is ready")
			}
			if c.unknown {
				if err := f.fleet.Apply(found); err != nil {
					t.Fatal(err)
				}
				arrived()
			}
			answer()
			m := <-answered
			if refused := m.GetImmediateResponse(); m == nil || refused != nil {
				t.Fatalf("it is refused: %v %s", refused.GetStatus(), refused.GetBody())
			}
			if to, want := headerSet(m.GetRequestHeaders().GetResponse(), destination), f.fleet.Servers()[0].Address(); to != want {
				t.Errorf("it goes to %q, want %q", to, want)
			}
			p.cancel()
			f.nothingHeld()
		})
	}
}

// A server that refuses its first probe is not waited for any longer, nor is one that never answers beyond the
// time of a probe, and a model that no server has is unknown then.
func TestRestartedPicker_WhatTheFirstProbesShowIsObeyed(t *testing.T) {
	answers := make(chan struct{})
	t.Cleanup(func() { close(answers) })
	for name, c := range map[string]struct {
		url    string
		model  string
		status int
	}{
		"it refuses":           {"http://127.0.0.1:9", testModel, http.StatusServiceUnavailable},
		"it never answers":     {heldServer(t, answers), testModel, http.StatusServiceUnavailable},
		"it has another model": {upServer(t), "other", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPicker(t, setup{
				specs: []pools.Spec{{URL: c.url, Role: pools.Decode, Connector: "aggregated"}}, pools: func(p *pools.Config) { p.ProbeTimeout = 100 * time.Millisecond },
				pd: func(o *pd.Orchestrator) { o.Binder.Config.UnresponsiveWait = time.Hour },
			})
			p := f.open()
			p.request(chatPath, []byte(`{"model":"`+c.model+`","messages":[{"role":"user","content":"a"}]}`))
			if refused := p.routing().refused; int(refused.GetStatus().GetCode()) != c.status {
				t.Errorf("it is answered by %v", refused)
			}
			f.nothingHeld()
		})
	}
}
