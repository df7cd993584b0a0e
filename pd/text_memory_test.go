package pd

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pools"
)

// spoiledMemory overwrites a text once all who hold it have released it.
type spoiledMemory struct {
	mu      sync.Mutex // guards all below
	text    []byte
	holders int
	spoiled bool
}

func (m *spoiledMemory) Hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders++
}

func (m *spoiledMemory) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders--; m.holders > 0 {
		return
	}
	for i := range m.text {
		m.text[i] = 0xDD
	}
	m.spoiled = true
}

func (m *spoiledMemory) isSpoiled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spoiled
}

// asksInMemory is a request whose text lies in memory that is overwritten when it is given back.
func (f *engineFleet) asksInMemory(d *api.Dialect, more string) (*Request, *spoiledMemory) {
	req := f.asks(d, more)
	m := &spoiledMemory{text: req.Body.Source(), holders: 1}
	req.Memory = m
	return req, m
}

// The memory of a client's text is given back once nothing reads it: of a stream when it is open, of a whole answer
// and of a failure when it is there. Whatever overwrites it then, answers are the same, also those that are continued.
func TestRun_GivesTheMemoryOfTheTextBack(t *testing.T) {
	for name, x := range map[string]struct {
		more  string
		d     *api.Dialect
		shape fleetShape
		fault engine.Fault
	}{
		"whole":            {`,"max_tokens":24`, api.Chat, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"stream":           {streamed, api.Chat, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"completion":       {streamed, api.Completions, fleetShape{prefill: 1, decode: 1}, engine.Fault{}},
		"decode alone":     {streamed, api.Chat, fleetShape{decode: 1}, engine.Fault{}},
		"both legs":        {streamed, api.Chat, fleetShape{prefill: 1, decode: 1, engine: func(c *engine.Config) { c.Connector = engine.ConnectorSGLang }}, engine.Fault{}},
		"both legs, whole": {`,"max_tokens":24`, api.Chat, fleetShape{prefill: 1, decode: 1, engine: func(c *engine.Config) { c.Connector = engine.ConnectorSGLang }}, engine.Fault{}},
		"a leg that fails": {streamed, api.Chat, fleetShape{prefill: 1, decode: 2}, engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 0, Count: 1}},
		"continued":        {streamed, api.Chat, fleetShape{prefill: 1, decode: 2}, engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5, Count: 1}},
	} {
		f := newEngineFleet(t, x.shape)
		f.Transport, f.Config.ContinueByText = enginehttp.NewTransport(time.Second), false
		want := reference(t, f.asks(x.d, x.more))
		for _, e := range f.decode {
			if x.fault.Kind != "" {
				e.SetFault(x.fault)
			}
		}
		req, memory := f.asksInMemory(x.d, x.more)
		answer, err := f.Run(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.eventually(name+": it is given back", memory.isSpoiled)
		if got := readToEnd(answer); got.err != nil || got.text != want {
			t.Errorf("%s: %v: %q, want %q", name, got.err, got.text, want)
		}
		f.nothingIsLeft()
	}
}

// A stream that begins with prefill's token gives the memory of prefill's answer back when decode has begun, also where
// decode begins before it has read its request: that still has the ids of the prompt, whatever is read meanwhile.
func TestRun_DecodeBehindPrefillsTokenReadsItsRequestLate(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which takes memory that nobody holds
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(c *engine.Config) { c.Version = "0.32.0" }, orchestrator: func(o *Orchestrator) {
		o.Binder.Config.FirstToken = firsttoken.FromPrefill
	}})
	f.identified()
	transport := enginehttp.NewTransport(time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	f.Config.ContinueByText = false
	var unread io.Reader
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if "http://"+r.URL.Host == f.prefill[0].URL() {
			resp, err := transport.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			defer func() { _ = resp.Body.Close() }()
			said, err := io.ReadAll(resp.Body)
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(said)), int64(len(said)) // as vLLM says it
			return resp, err
		}
		unread = r.Body
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body: io.NopCloser(strings.NewReader(textEvent + "data: [DONE]\n\n")),
		}, nil
	})
	answer, err := f.Run(t.Context(), requestOf(t, api.Chat, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("of the sea and ", 4000)+`"}]`+streamed+`}`))
	if err != nil {
		t.Fatal(err)
	}
	readToEnd(answer)
	for range 2 { // in which one of another request would be read
		readAnswer(t, new(enginehttp.AnswerMemory))
	}
	leg, err := io.ReadAll(unread)
	if err != nil || !json.Valid(leg) || gjson.GetBytes(leg, "kv_transfer_params.prompt_token_ids.#").Int() < 4000 {
		t.Errorf("decode is sent %d bytes, %v", len(leg), err)
	}
}

// readAnswer reads an answer into some memory, and returns where it begins.
func readAnswer(t *testing.T, into *enginehttp.AnswerMemory) *byte {
	t.Helper()
	resp := &http.Response{ContentLength: 40_000, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 40_000)))}
	answer, err := enginehttp.ReadAnswer(resp, &enginehttp.HeldAnswer{Memory: into})
	if err != nil {
		t.Fatal(err)
	}
	return &answer[0]
}

// The memory of prefill's answer is another's once decode's leg is written and the request does not read it any more.
func TestDropText_GivesTheMemoryOfPrefillsAnswerBack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which takes memory that nobody holds
	f := newTestFleet(t, 1, testPrompt(100))
	st, b := f.bound(t, false)
	st.bindings = append(st.bindings, b)
	text := &spoiledMemory{holders: 1}
	st.client.Memory, st.req.Memory, st.memory = text, text, text
	b.prefillSaid = new(enginehttp.AnswerMemory)
	said := readAnswer(t, b.prefillSaid)
	leg := st.memoryOf(b)
	leg.Hold()
	st.dropText()
	st.dropText() // which does nothing
	if text.isSpoiled() || readAnswer(t, new(enginehttp.AnswerMemory)) == said {
		t.Error("the memory of a leg that is being written is given back")
	}
	leg.Release()
	if !text.isSpoiled() || readAnswer(t, new(enginehttp.AnswerMemory)) != said {
		t.Error("the memory of a leg that is written is not given back")
	}
}

// Where legs run together a stream lets go of the client's text with its first event. Its memory is given back when
// prefill's leg, which reads it too, has ended: whether the client reads on or not.
func TestRun_GivesTheMemoryBackWhenPrefillEndsBesideTheStream(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.becomesSGLangPair(t)
	prefilled, of := make(chan struct{}), make(map[pools.Role]*url.URL)
	for role, answer := range map[pools.Role]func(w http.ResponseWriter){
		pools.Prefill: func(http.ResponseWriter) { <-prefilled },
		pools.Decode: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, textEvent+"data: [DONE]\n\n")
		},
	} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			answer(w)
		}))
		t.Cleanup(engine.Close)
		of[role], _ = url.Parse(engine.URL)
	}
	transport := enginehttp.NewTransport(time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		r.URL.Host = of[f.serverOf(r).Role].Host
		return transport.RoundTrip(r)
	})
	req := f.pairRequest(t, true)
	memory := &spoiledMemory{text: req.Body.Source(), holders: 1}
	req.Memory = memory
	answer, err := f.Run(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Stream.Close()
	if answer.leg.handoff.Leg.Body.Len() != 0 {
		t.Error("the stream holds decode's leg")
	}
	if memory.isSpoiled() {
		t.Error("it was given back while prefill may read it")
	}
	close(prefilled)
	f.Wait()
	if !memory.isSpoiled() {
		t.Error("it is held although both legs have ended")
	}
}
