package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
)

// With ConnectorSidecar each address of an engine that decodes is that of llm-d's routing proxy
// in front of it (llm-d-router pkg/sidecar/proxy at ebab687, August 2026: chat_completions.go,
// connector_nixlv2.go, data_parallel.go, errors.go): a request that names a prefill server is
// sent there first with one token to compute, and goes on to the engine with the hand-off of
// that answer. Sampling among several prefill servers, retries and the list of allowed ones are
// off by default there, and left out here, as are encoders and vLLM's /inference/v1/generate.

// Headers that a picker of endpoints sets (llm-d-router pkg/common/routing/common.go).
const (
	prefillerHeader    = "X-Prefiller-Host-Port"
	dataParallelHeader = "X-Data-Parallel-Host-Port"
)

// sidecarLimits are the fields that bound an answer's length, by the path of the request; other
// paths are passed on as they are.
var sidecarLimits = map[string][]string{
	"/v1/chat/completions": {"max_tokens", "max_completion_tokens", "min_tokens"},
	"/v1/completions":      {"max_tokens", "max_completion_tokens", "min_tokens"},
	"/v1/messages":         {"max_tokens", "max_completion_tokens", "min_tokens"},
	"/v1/responses":        {"max_output_tokens"},
}

// sidecarError is the shape of the sidecar's own errors, which is not that of the engine's.
type sidecarError struct {
	Object  string `json:"object"`
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Code    int    `json:"code"`
}

// answerInvalidJSON is its answer where the client's body or prefill's answer is no JSON.
func (x *exchange) answerInvalidJSON(message string) {
	status := http.StatusBadRequest
	writeJSON(x.w, status, sidecarError{"error", message, "BadRequestError", "", status})
}

// besideSidecar is the sidecar's part of a request; done says that it was answered.
func (e *Engine) besideSidecar(x *exchange) (done bool, err error) {
	limits, known := sidecarLimits[x.r.URL.Path]
	if e.cfg.Connector != ConnectorSidecar || e.cfg.Role == RolePrefill || !known || x.r.Method != http.MethodPost {
		return false, nil
	}
	to, _, _ := strings.Cut(x.r.Header.Get(prefillerHeader), ",")
	x.r.Header.Del(prefillerHeader)
	if to = strings.TrimPrefix(strings.TrimSpace(to), "http://"); to != "" {
		if done, err := e.prefillFirst(x, to, limits); done || err != nil {
			return done, err
		}
	}
	return !e.chooseRank(x), nil
}

// chooseRank obeys a header that names one of the pod's ports. It is false, and the request is
// answered, where none has that address.
func (e *Engine) chooseRank(x *exchange) bool {
	address := x.r.Header.Get(dataParallelHeader)
	if address == "" || x.rank > 0 { // only the first port looks at it
		return true
	}
	for rank, l := range e.listeners {
		if l.addr == address {
			x.rank = rank
			return true
		}
	}
	x.w.WriteHeader(http.StatusBadRequest)
	return false
}

// prefillFirst runs the prefill leg and puts its hand-off into the body. What prefill answers
// with an error is the answer to the client.
func (e *Engine) prefillFirst(x *exchange, to string, limits []string) (done bool, err error) {
	var body map[string]json.RawMessage
	if err := json.Unmarshal(x.body, &body); err != nil {
		x.answerInvalidJSON(fmt.Sprintf("invalid JSON: %v", err))
		return true, nil
	}
	resp, err := e.callPrefiller(x, to, body, limits)
	if err != nil {
		if x.r.Context().Err() != nil {
			return false, errClientGone
		}
		x.w.WriteHeader(http.StatusBadGateway) // net/http/httputil's reverse proxy adds no body
		return true, nil
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil && x.r.Context().Err() != nil {
		return false, errClientGone
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		maps.Copy(x.w.Header(), resp.Header)
		x.w.WriteHeader(resp.StatusCode)
		_, _ = x.w.Write(answer) // a client that is gone needs none
		return true, nil
	}
	var handed struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &handed); err != nil {
		x.answerInvalidJSON(err.Error())
		return true, nil
	}
	if body["kv_transfer_params"] = handed.Params; len(handed.Params) == 0 {
		body["kv_transfer_params"] = []byte("null")
	}
	x.body, err = json.Marshal(body)
	return false, err
}

// callPrefiller sends the prefill leg: the client's request and headers, for one token.
func (e *Engine) callPrefiller(x *exchange, to string, body map[string]json.RawMessage, limits []string) (*http.Response, error) {
	leg := maps.Clone(body)
	delete(leg, "stream_options")
	leg["stream"] = []byte("false")
	leg["kv_transfer_params"] = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	for _, field := range limits {
		leg[field] = []byte("1")
	}
	raw, err := json.Marshal(leg)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(x.r.Context(), http.MethodPost, "http://"+to+x.r.URL.Path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header = x.r.Header.Clone()
	req.Header.Del("Connection")
	req.Header.Add("X-Request-Id", newID(""))
	return e.ranks[0].side.client.Do(req)
}
