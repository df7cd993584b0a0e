package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// disaggregatedParams are what TensorRT-LLM's context and generation servers say to
// each other through the gateway.
type disaggregatedParams struct {
	RequestType    string  `json:"request_type"`
	DisaggID       int64   `json:"disagg_request_id"`
	ContextID      *int64  `json:"ctx_request_id,omitempty"`
	FirstGenTokens []int32 `json:"first_gen_tokens,omitempty"`
	OpaqueState    *string `json:"encoded_opaque_state,omitempty"`
}

// leastDisaggID: lesser ids are the engine's own.
const leastDisaggID = 1 << 42

// trtllmParams reads them. Generation must name the context's request, its first token
// and its state.
func trtllmParams(raw json.RawMessage) (p transferParams, err error) {
	if !present(raw) {
		return p, nil
	}
	var in disaggregatedParams
	if err := json.Unmarshal(raw, &in); err != nil {
		return p, err
	}
	if in.DisaggID < leastDisaggID {
		return p, fmt.Errorf("disagg_request_id %d is less than 2^42", in.DisaggID)
	}
	p.name = strconv.FormatInt(in.DisaggID, 10)
	switch in.RequestType {
	case "context_only":
		p.prefillLeg = true
		return p, nil
	case "generation_only":
		p.decodeLeg = true
	default:
		return p, fmt.Errorf("request_type %q", in.RequestType)
	}
	if in.ContextID == nil || *in.ContextID != in.DisaggID || len(in.FirstGenTokens) != 1 || in.OpaqueState == nil {
		return p, fmt.Errorf("generation_only lacks what the context said")
	}
	state, err := base64.StdEncoding.DecodeString(*in.OpaqueState)
	if err != nil {
		return p, fmt.Errorf("encoded_opaque_state: %w", err)
	}
	address, engineID, _ := strings.Cut(string(state), "/")
	at, err := appointmentAt(address, p.name)
	if err != nil {
		return p, err
	}
	at.engineID = engineID
	p.bootstraps = []*bootstrapRoom{at}
	return p, nil
}

// checkSignature refuses a hand-off that is not signed as TensorRT-LLM's own router signs it: in a header, over the two
// fields by which generation would reach other hosts (tensorrt_llm/serve/disagg_auth.py, main since #16002 of July 2026).
func (e *Engine) checkSignature(x *exchange, raw json.RawMessage) error {
	var in struct {
		State    *string `json:"encoded_opaque_state"`
		Endpoint *string `json:"ctx_info_endpoint"`
	}
	if e.cfg.HandoffKey == "" || !present(raw) {
		return nil
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return badRequest("disaggregated_params", "%v", err)
	}
	if in.State == nil && in.Endpoint == nil {
		return nil
	}
	signed, err := json.Marshal(map[string]*string{"ctx_info_endpoint": in.Endpoint, "encoded_opaque_state": in.State})
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(e.cfg.HandoffKey))
	_, _ = mac.Write(signed)
	if want := fmt.Sprintf("sha256=%x", mac.Sum(nil)); x.r.Header.Get("X-Trtllm-Disagg-Auth") != want {
		return badRequest("disaggregated_params", "Invalid internal disaggregated request authentication")
	}
	return nil
}

// contextParams are what a context server hands over with an answer; nil when the
// request asked for none.
func (j *job) contextParams(a *answer) *disaggregatedParams {
	s := j.sequences[0]
	if j.rank.cfg.Connector != ConnectorTRTLLM || !s.handoffOut || s.dropHandoff || a.finish != finishLength {
		return nil
	}
	id, err := strconv.ParseInt(s.holdName, 10, 64)
	if err != nil {
		return nil // it was made from a number
	}
	side := j.rank.side
	state := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s:%d/%s", side.host, side.port, j.rank.id))
	return &disaggregatedParams{
		RequestType: "context_only", DisaggID: id, ContextID: &id,
		FirstGenTokens: a.tokens(), OpaqueState: &state,
	}
}
