package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// prefillerHeader names to llm-d's sidecar in front of a decode engine which prefill
// server to call first.
const prefillerHeader = "X-Prefiller-Host-Port"

// besideSidecar is the sidecar's part of a request: the prefill leg, after which the
// body carries its hand-off. Without the header the request stays as it is. An error of
// prefill is the answer; done says that it was given.
func (e *Engine) besideSidecar(x *exchange) (done bool, err error) {
	to := x.r.Header.Get(prefillerHeader)
	if e.cfg.Connector != ConnectorSidecar || to == "" || x.r.Method != http.MethodPost {
		return false, nil
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(x.body, &body); err != nil {
		return false, badRequest("", "JSON decode error: %v", err)
	}
	answer, status, err := e.callPrefiller(x, to, body)
	switch {
	case x.r.Context().Err() != nil:
		return false, errClientGone
	case err != nil:
		return false, &apiError{http.StatusBadGateway, "BadGateway", err.Error(), ""}
	case status != http.StatusOK:
		x.w.Header().Set("Content-Type", "application/json")
		x.w.WriteHeader(status)
		_, _ = x.w.Write(answer) // a client that is gone needs none
		return true, nil
	}
	var handed struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &handed); err != nil {
		return false, &apiError{http.StatusBadGateway, "BadGateway", err.Error(), ""}
	}
	if present(handed.Params) {
		body["kv_transfer_params"] = handed.Params
	}
	x.body, err = json.Marshal(body)
	return false, err
}

func (e *Engine) callPrefiller(x *exchange, to string, body map[string]json.RawMessage) (answer []byte, status int, err error) {
	leg := map[string]json.RawMessage{}
	for k, v := range body {
		leg[k] = v
	}
	delete(leg, "stream_options")
	leg["stream"], leg["max_tokens"], leg["ignore_eos"] = []byte("false"), []byte("1"), []byte("true")
	if _, ok := leg["max_completion_tokens"]; ok {
		leg["max_completion_tokens"] = []byte("1")
	}
	leg["kv_transfer_params"] = []byte(`{"do_remote_decode":true,"do_remote_prefill":false}`)
	raw, err := json.Marshal(leg)
	if err != nil {
		return nil, 0, err
	}
	req, err := http.NewRequestWithContext(x.r.Context(), http.MethodPost, "http://"+to+x.r.URL.Path, bytes.NewReader(raw))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", x.id)
	resp, err := e.ranks[0].side.client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("prefill: %w", err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return answer, resp.StatusCode, err
}
