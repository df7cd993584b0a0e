package pd

import (
	"errors"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/address"
)

var errForeignHost = errors.New("the hand-off names a host that is not known to be the server's")

// withheld counts a hand-off that would have decode fetch KV from a host that is not the
// prefill server's, and warns of each such host once. Where hand-offs are strict decode is
// not given it, nor one with a host of which that is not known: the prefill has failed, for
// the request and not for the server's breaker.
func (o *Orchestrator) withheld(st *requestState, t *connector.Transfer, h *connector.Handoff) *LegError {
	if h.WholeAnswer != nil {
		return nil // decode is not asked
	}
	server, strict := t.From, o.Config.StrictHandoffs
	worst, host := address.Own, ""
	for _, named := range h.Hosts { // all of them: each that is unknown is looked up
		if is := server.JudgeHost(named, t.To); is > worst {
			worst, host = is, named
		}
	}
	if worst == address.Own || worst == address.Unknown && !strict {
		return nil
	}
	o.Metrics.foreign.WithLabelValues(server.ID()).Inc()
	if server.NoteForeign(host) {
		o.warnOfHost(server, host, worst)
	}
	if !strict {
		return nil
	}
	o.Metrics.countStranded(h)
	o.noteNoHandoff(server)
	st.retryWithoutBudget = true
	return &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Err: errForeignHost}
}

func (o *Orchestrator) warnOfHost(server *pools.Server, host string, is address.Ownership) {
	text := "hand-offs name a host that is neither the prefill server's nor that of its kv-address: decode fetches the KV from another machine, or fails; " +
		"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	if is == address.Unknown {
		text = "a hand-off names a host that is not known to be the prefill server's: it is withheld until the host is looked up and found to be; " +
			"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	}
	o.Log.Warn(text, "server", server.ID(), "host", host, "withheld", o.Config.StrictHandoffs)
}
