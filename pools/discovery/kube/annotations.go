package kube

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-gateway/tandem/pools"
)

// annotations is what the labels and annotations of an object say of its servers; an
// annotation counts before a label of the same name.
type annotations struct {
	pools.Spec       // without address and rank
	ports      []int // of which each is a server; none: unsaid
	active     []int // of a pool's ports those in use; none: all
	ranks      int   // data-parallel ranks behind each port; 1: the port is the server
	eventsPort int   // of the first server's KV events, the next one's is one higher; 0: none
	replayPort int
	kvPort     int // of the first port's KV, the next one's is one higher; 0: the connector's usual
	orcaPort   int // likewise of the OpenRcaService; 0: none
	metrics    int // likewise of the Prometheus metrics; 0: where the engine has them
}

// groupKey is the label of pods that names their LeaderWorkerSet's group.
const groupKey = "leaderworkerset.sigs.k8s.io/group-key"

// defaultPort is where vLLM listens by default.
const defaultPort = 8000

// readAnnotations reads
//
//	tandem/role        prefill, decode or both; without it llm-d.ai/role; without both: both
//	tandem/connector   how decode obtains the KV; as the engine reports
//	tandem/weights     version of the weights; tandem/layout likewise
//	tandem/store       KV store that it shares with the servers of that name; none
//	tandem/ports       8000, or 8000,8001 as an annotation: several servers
//	tandem/dp-size     data-parallel ranks behind each port; 1
//	tandem/events      port of the first server's KV events (server n: n higher); none
//	tandem/replay      port that replays them, likewise; none
//	tandem/kv          port where others reach the first port's KV (port n: n higher)
//	tandem/orca        port of its OpenRcaService, likewise; none
//	tandem/metrics     port of its metrics, likewise; the engine's own
//	tandem/event-ranks ranks that publish behind a port which chooses among them itself
//	tandem/native      true: it speaks SGLang's own API
//	tandem/lockstep    true: all servers of the pod, or of the pods of a LeaderWorkerSet's
//	                   group, step together
//	tandem/variant     kind of hardware, where scaling must distinguish it
//	tandem/elastic     true: the engine grows in place (vLLM's elastic expert parallelism)
//	tandem/host, tandem/rack, tandem/zone
//	                   place; otherwise the node's
//	tandem/drain       true: takes no new request
//
// and llm-d.ai/active-ports, or inference.networking.k8s.io/active-ports, which
// narrows the ports of an InferencePool.
func readAnnotations(object metav1.Object) (annotations, error) {
	value := func(keys ...string) string {
		for _, key := range keys {
			if set := cmp.Or(object.GetAnnotations()[key], object.GetLabels()[key]); set != "" {
				return set
			}
		}
		return ""
	}
	s := annotations{Spec: pools.Spec{
		Connector: value("tandem/connector"),
		Weights:   value("tandem/weights"),
		Layout:    value("tandem/layout"),
		Store:     value("tandem/store"),
		Variant:   value("tandem/variant"),
		Elastic:   value("tandem/elastic") == "true",
		Host:      value("tandem/host"),
		Rack:      value("tandem/rack"),
		Zone:      value("tandem/zone", corev1.LabelTopologyZone),
		Native:    value("tandem/native") == "true",
		Drain:     value("tandem/drain") == "true",
	}}
	s.Unit = cmp.Or(value(groupKey), object.GetName())
	// Sets that count their members lose the highest; others make keys of hashes.
	if n, err := strconv.Atoi(value("leaderworkerset.sigs.k8s.io/group-index", "apps.kubernetes.io/pod-index")); err == nil {
		s.Ordinal = &n
	}
	if value("tandem/lockstep") == "true" {
		s.Group = s.Unit
	}
	// A name of llm-d says whether a server encodes media as well (llm-d-router pkg/epp/framework/
	// plugins/scheduling/filter/bylabel/roles.go at ebab687, August 2026).
	switch role := cmp.Or(value("tandem/role", "llm-d.ai/role"), "both"); role {
	case "prefill", "encode-prefill":
		s.Role = pools.Prefill
	case "decode":
		s.Role = pools.Decode
	case "both", "prefill-decode", "encode-prefill-decode":
		s.Role = pools.Both
	default:
		return annotations{}, fmt.Errorf("role %q: want prefill, decode or both", role)
	}
	var err error
	if s.ports, err = portList(value("tandem/ports")); err != nil {
		return annotations{}, fmt.Errorf("tandem/ports: %w", err)
	}
	if s.active, err = portList(value("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")); err != nil {
		return annotations{}, fmt.Errorf("active-ports: %w", err)
	}
	for key, into := range map[string]*int{
		"tandem/dp-size": &s.ranks, "tandem/events": &s.eventsPort, "tandem/replay": &s.replayPort,
		"tandem/kv": &s.kvPort, "tandem/orca": &s.orcaPort, "tandem/metrics": &s.metrics,
		"tandem/event-ranks": &s.EventRanks,
	} {
		port := value(key)
		if port == "" {
			continue
		}
		if *into, err = strconv.Atoi(port); err != nil || *into < 1 || *into > 65535 {
			return annotations{}, fmt.Errorf("%s %q: want a number, 1 to 65535", key, port)
		}
	}
	s.ranks = max(1, s.ranks)
	return s, nil
}

func portList(text string) ([]int, error) {
	var ports []int
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		port, err := strconv.Atoi(item)
		if err != nil || port < 1 || port > 65535 {
			return nil, fmt.Errorf("port %q: want a number, 1 to 65535", item)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// locate fills in the place that labels left open by that of the node.
func (s *annotations) locate(node string, is labels.Set, rackLabel string) {
	s.Host = cmp.Or(s.Host, node)
	s.Rack = cmp.Or(s.Rack, is[rackLabel])
	s.Zone = cmp.Or(s.Zone, is[corev1.LabelTopologyZone])
}

// portsAmong returns the ports that are servers: those that the sign names, else
// those of the pool or Service that are in use, else vLLM's own.
func (s annotations) portsAmong(offered []int) []int {
	if len(s.ports) > 0 {
		return s.ports
	}
	if len(offered) == 0 {
		return []int{defaultPort}
	}
	if len(s.active) == 0 {
		return offered
	}
	return slices.DeleteFunc(slices.Clone(offered), func(p int) bool { return !slices.Contains(s.active, p) })
}

// specs returns the servers at an address, in the order of ports and ranks. The
// n-th publishes its KV events n ports above the first, as vLLM's ranks do
// (vllm/distributed/kv_events.py, offset_endpoint_port).
func (s annotations) specs(address string, ports []int) []pools.Spec {
	at := func(prefix string, port, offset int) string {
		if port == 0 {
			return ""
		}
		return prefix + net.JoinHostPort(address, strconv.Itoa(port+offset))
	}
	var all []pools.Spec
	for i, port := range ports {
		for rank := range s.ranks {
			spec := s.Spec
			spec.URL = at("http://", port, 0)
			spec.KVAddress = at("", s.kvPort, i)
			spec.ORCA = at("", s.orcaPort, i)
			if s.metrics > 0 {
				spec.Metrics = at("http://", s.metrics, i) + "/metrics"
			}
			spec.Events = at("tcp://", s.eventsPort, len(all))
			spec.Replay = at("tcp://", s.replayPort, len(all))
			if s.ranks > 1 {
				spec.Rank = new(rank)
			}
			all = append(all, spec)
		}
	}
	return all
}
