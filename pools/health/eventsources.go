package health

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
)

// eventSource is where a rank of a vLLM says that it publishes its KV events, without any setting (vLLM 0.32 and
// 0.33, vllm/entrypoints/serve/instrumentator/basic.py, and vllm/config/kv_events.py).
type eventSource struct {
	Publisher string `json:"publisher"` // zmq
	Endpoint  string `json:"endpoint"`  // with the rank's own port
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
}

// eventSources are those of a server by rank; of one that is a rank itself, its own.
type eventSources map[int]eventSource

// eventSources asks a vLLM where it publishes. Those before 0.32 have no such page.
func (e engine) eventSources(ctx context.Context) (pools.Publisher, error) {
	sources, err := page[eventSources](ctx, e, "/kv_event_sources")
	if err != nil {
		return pools.Publisher{}, err
	}
	if own := e.server.Rank; own != nil {
		maps.DeleteFunc(sources, func(rank int, _ eventSource) bool { return rank != *own })
	}
	u, err := url.Parse(e.server.URL)
	if err != nil {
		return pools.Publisher{}, err
	}
	ports := sources.ports(u.Hostname())
	if own := e.server.Rank; own != nil { // the ports are rank 0's in what is reported
		ports.EventsPort, ports.ReplayPort = max(0, ports.EventsPort-*own), max(0, ports.ReplayPort-*own)
	}
	return ports, nil
}

// ports are those at which the first rank publishes, and how many ranks do so on ports in a row: none where their
// ports are not in a row, or the engine is one that connects to its subscribers.
func (s eventSources) ports(host string) (p pools.Publisher) {
	for i, rank := range slices.Sorted(maps.Keys(s)) {
		source := s[rank]
		events, replay := portToListen(source.Endpoint, host), portToListen(source.Replay, host)
		if source.Publisher != "zmq" || events == 0 {
			return pools.Publisher{}
		}
		if i == 0 {
			p = pools.Publisher{EventsPort: events, ReplayPort: replay, Topic: source.Topic}
		}
		if events != p.EventsPort+i {
			return pools.Publisher{}
		}
		if replay != p.ReplayPort+i {
			p.ReplayPort = 0
		}
		p.Ranks++
	}
	return p
}

// portToListen is the port of a ZMQ endpoint that is bound on the server's host; 0: it is none. vLLM binds wildcards,
// and reports of tcp://*:0 the node's own address with the port that it got; it connects to other addresses
// (distributed/kv_events.py, _is_bind_endpoint and _bind).
func portToListen(endpoint, host string) int {
	address, isTCP := strings.CutPrefix(endpoint, "tcp://")
	at, port, err := net.SplitHostPort(address)
	if !isTCP || err != nil {
		return 0
	}
	ip, _ := netip.ParseAddr(at)
	if bound := strings.Contains(at, "*") || strings.Contains(at, "::"); !bound && (at != host || ip.IsLoopback()) {
		return 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}
