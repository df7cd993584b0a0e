package pd

import (
	"errors"
	"net"
	"net/url"
	"slices"
)

// maxHosts bounds how many hosts of one hand-off are looked at.
const maxHosts = 64

var errForeignHost = errors.New("the hand-off names a host that is not the server's")

// hostsIn are the hosts that a field of a hand-off names: a host, host:port, a URL
// such as tcp://10.0.0.1:5000, or a list of them.
func hostsIn(field Value) []string {
	var hosts []string
	one := func(v Value) {
		text, ok := v.String()
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			text = u.Hostname()
		} else if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		if ok && len(hosts) < maxHosts {
			hosts = append(hosts, text)
		}
	}
	one(field)
	for v := range field.Elements() {
		one(v)
	}
	return hosts
}

// withheld counts a hand-off that would have decode fetch KV from a host that is not the
// prefill server's, and warns of each such host once. Where hand-offs are strict decode is
// not given it: the prefill has failed, for the request and not for the server's breaker.
func (o *Orchestrator) withheld(j *journey, t *transfer, h *Handoff) *LegError {
	if h.final != nil {
		return nil // decode is not asked
	}
	server := t.from
	i := slices.IndexFunc(h.hosts, func(host string) bool { return server.IsForeign(host, t.to) })
	if i < 0 {
		return nil
	}
	o.Metrics.foreign.WithLabelValues(server.ID()).Inc()
	if server.NoteForeign(h.hosts[i]) {
		o.Log.Warn("hand-offs name a host that is neither the prefill server's nor that of its kv-address: decode fetches the KV from another machine, or fails; "+
			"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address",
			"server", server.ID(), "host", h.hosts[i], "withheld", o.Config.StrictHandoffs)
	}
	if !o.Config.StrictHandoffs {
		return nil
	}
	o.strand(h)
	o.noteNoHandoff(server)
	j.freeRetry = true
	return &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Err: errForeignHost}
}
