package standby

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// An engine is asked with JSON. That an adapter is there already, or gone already, is what was
// wanted; all else but 200 is an error that names the path and the status, a redirect too.
func TestPost_WhatAnEngineAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   string // in the error; empty: none
	}{
		{200, "", ""},
		{200, strings.Repeat("x", maxAnswer+1), ""},
		{400, `{"error":"The lora adapter 'ada' has already been loaded."}`, ""},
		{400, `{"error":"no such path"}`, "/v1/load answered 400"},
		{400, `{"error":"The lora adapter 'ada' cannot be found."}`, "answered 400"},
		{404, `{"error":"The lora adapter 'ada' cannot be found."}`, ""},
		{404, `{"detail":"Not Found"}`, "answered 404"},
		{404, `{"error":"has already been loaded"}`, "answered 404"},
		{500, `has already been loaded, cannot be found`, "answered 500"},
		{201, "", "answered 201"},
		{307, "", "answered 307"},
	} {
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			asked = append(asked, fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"), body))
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		e := engine{client: &http.Client{CheckRedirect: noRedirect}}
		err := e.post(t.Context(), server.URL+"/v1/load", map[string]string{"lora_name": "ada"})
		server.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %.60q: %v, want %q", c.status, c.body, err, c.want)
		}
		if len(asked) != 1 || asked[0] != `POST /v1/load application/json {"lora_name":"ada"}` {
			t.Errorf("%d: asked %q", c.status, asked)
		}
		if err := e.post(t.Context(), server.URL+"/v1/load", nil); err == nil {
			t.Error("no server is there, and that is no error")
		}
	}
	if err := (engine{client: http.DefaultClient}).post(t.Context(), "http://10.0.0.1:x", nil); err == nil {
		t.Error("what is no address is no error")
	}
}

// answer is a transport to an engine that gives one answer, whose body notes that it is closed
// and ends as it is told.
type answer struct {
	ends   error
	closed bool
}

func (a *answer) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: a, Request: req}, nil
}
func (a *answer) Read([]byte) (int, error) { return 0, a.ends }
func (a *answer) Close() error             { a.closed = true; return nil }

// An answer is closed whatever is in it, else its connection is lost; one that is cut is no
// answer.
func TestPost_AnAnswerIsClosed(t *testing.T) {
	for _, ends := range []error{io.EOF, io.ErrUnexpectedEOF} {
		a := &answer{ends: ends}
		err := engine{client: &http.Client{Transport: a}}.post(t.Context(), "http://10.0.0.1:1/sleep", nil)
		if !a.closed || (err == nil) != (ends == io.EOF) {
			t.Errorf("an answer that ends with %v: %v, closed %v", ends, err, a.closed)
		}
	}
}

// What failed because others were at work is tried again soon, all else later.
func TestRefusal(t *testing.T) {
	for err, want := range map[error]time.Duration{
		errAdapterRoom: time.Second, errOccupied: time.Second, fmt.Errorf("a:1: %w", errOccupied): time.Second,
		io.EOF: 30 * time.Second, errNotManager: 30 * time.Second,
	} {
		if got := refusal(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// Weights that were dropped are read again before the engine gets its KV cache.
func TestWakeSteps(t *testing.T) {
	for level, want := range map[int]string{
		1: `/wake_up null `,
		2: `/wake_up?tags=weights null /collective_rpc {"method":"reload_weights"} /wake_up?tags=kv_cache null `,
	} {
		got := ""
		for _, step := range wakeSteps(level) {
			body, err := json.Marshal(step.body)
			if err != nil {
				t.Fatal(err)
			}
			got += step.path + " " + string(body) + " "
		}
		if got != want {
			t.Errorf("level %d: %s, want %s", level, got, want)
		}
	}
}

// SGLang takes orders about adapters at its root, the others under /v1.
func TestOrder_WhereAnEngineTakesIt(t *testing.T) {
	for connector, path := range map[string]string{"sglang": "/unload_lora_adapter", "nixl": "/v1/unload_lora_adapter"} {
		engines := new(obeying)
		s := pools.NewServer(pools.Spec{URL: "http://10.0.0.1:1", Role: pools.Decode, Connector: connector})
		m := adapterManager{engine: engine{s, &http.Client{Transport: engines}}, cfg: pools.DefaultAdapters()}
		if err := m.order(t.Context(), "unload_lora_adapter", map[string]string{"lora_name": "ada"}); err != nil {
			t.Error(err)
		}
		engines.took(t, connector, "10.0.0.1 "+path+" ada")
	}
}
