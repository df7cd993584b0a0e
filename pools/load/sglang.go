package load

import (
	"encoding/json"
	"errors"
)

// sglangLoadsPath is where SGLang reports its load by rank, without any flag, and by
// tokens: what its Prometheus metrics do not have.
const sglangLoadsPath = "/v1/loads"

// sglangLoads is the answer of /v1/loads (sglang/srt/managers/load_snapshot.py).
type sglangLoads struct {
	Loads []sglangRankLoad `json:"loads"`
}

type sglangRankLoad struct {
	Rank          *int     `json:"dp_rank"`
	Running       *float64 `json:"num_running_reqs"`
	Waiting       *float64 `json:"num_waiting_reqs"`
	WaitingTokens *float64 `json:"num_waiting_uncached_tokens"`
	UsedTokens    *float64 `json:"num_used_tokens"`
	MaxTokens     *float64 `json:"max_total_num_tokens"`
	TokenUsage    *float64 `json:"token_usage"`
}

var errNoLoads = errors.New("/v1/loads reports no rank that is ready")

// parseSGLangLoads reads it: one rank's, or the sum of all with the fullest one's KV
// use. A rank without any KV is not ready; an empty list means that SGLang's own
// collection is broken.
func parseSGLangLoads(body []byte, rank *int) (Load, error) {
	var answer sglangLoads
	if err := json.Unmarshal(body, &answer); err != nil {
		return Load{}, errors.New("/v1/loads is no list of loads")
	}
	l := Load{Engine: "sglang"}
	for _, r := range answer.Loads {
		if rank != nil && r.Rank != nil && *r.Rank != *rank || r.MaxTokens == nil || *r.MaxTokens <= 0 {
			continue
		}
		l.Running.add(r.Running)
		l.Waiting.add(r.Waiting)
		l.WaitingTokens.add(r.WaitingTokens)
		l.RunningTokens.add(r.UsedTokens)
		l.KVTokens.add(r.MaxTokens)
		if v := r.TokenUsage; v != nil && usable(*v) {
			l.KVUsed = Gauge{Value: max(l.KVUsed.Value, *v), Known: true}
		}
	}
	if !l.Known() {
		return Load{}, errNoLoads
	}
	return l, nil
}

// add counts a value that may be missing or of no use.
func (g *Gauge) add(v *float64) {
	if v != nil && usable(*v) && usable(g.Value+*v) {
		*g = Gauge{Value: g.Value + *v, Known: true}
	}
}
