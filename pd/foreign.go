package pd

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
)

const (
	maxHosts = 64  // of one hand-off that are looked at
	maxHost  = 253 // bytes of a host's name
)

var errForeignHost = errors.New("the hand-off names a host that is not known to be the server's")

// hostsIn are the hosts that a field of a hand-off names: a host, host:port, a URL
// such as tcp://10.0.0.1:5000, or a list of them. What cannot be read as one, and what is
// beyond the first maxHosts, is an empty host, which is nobody's.
func hostsIn(field Value) []string {
	if len(field) == 0 || field[0] == 'n' { // null
		return nil
	}
	if field[0] != '[' {
		return []string{hostOf(field)}
	}
	var hosts []string
	for v := range field.Elements() {
		if len(hosts) == maxHosts {
			return append(hosts, "")
		}
		hosts = append(hosts, hostOf(v))
	}
	return hosts
}

// hostOf reads one host. A port or a path that is none may hide another host from us: ZMQ
// connects from a;to b where it reads "a:1;b:2".
func hostOf(v Value) string {
	text, ok := v.String()
	if !ok || len(text) > maxHost {
		return ""
	}
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		if strings.TrimSuffix(text, "/") == u.Scheme+"://"+u.Host {
			return u.Hostname()
		}
		return text
	}
	if host, port, err := net.SplitHostPort(text); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return host
		}
	}
	return text
}

// withheld counts a hand-off that would have decode fetch KV from a host that is not the
// prefill server's, and warns of each such host once. Where hand-offs are strict decode is
// not given it, nor one with a host of which that is not known: the prefill has failed, for
// the request and not for the server's breaker.
func (o *Orchestrator) withheld(j *requestState, t *transfer, h *Handoff) *LegError {
	if h.final != nil {
		return nil // decode is not asked
	}
	server, strict := t.from, o.Config.StrictHandoffs
	worst, host := pools.OwnHost, ""
	for _, named := range h.hosts { // all of them: each that is unknown is looked up
		if is := server.JudgeHost(named, t.to); is > worst {
			worst, host = is, named
		}
	}
	if worst == pools.OwnHost || worst == pools.UnknownHost && !strict {
		return nil
	}
	o.Metrics.foreign.WithLabelValues(server.ID()).Inc()
	if server.NoteForeign(host) {
		o.warnOfHost(server, host, worst)
	}
	if !strict {
		return nil
	}
	o.countStranded(h)
	o.noteNoHandoff(server)
	j.retryWithoutBudget = true
	return &LegError{Leg: PrefillLeg, Server: server.ID(), Kind: Broken, Err: errForeignHost}
}

func (o *Orchestrator) warnOfHost(server *pools.Server, host string, is pools.Ownership) {
	text := "hand-offs name a host that is neither the prefill server's nor that of its kv-address: decode fetches the KV from another machine, or fails; " +
		"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	if is == pools.UnknownHost {
		text = "a hand-off names a host that is not known to be the prefill server's: it is withheld until the host is looked up and found to be; " +
			"set the engine's own host there (vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST), or the server's kv-address"
	}
	o.Log.Warn(text, "server", server.ID(), "host", host, "withheld", o.Config.StrictHandoffs)
}
