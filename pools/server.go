package pools

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/pools/load"
)

// Role says which legs a server takes. A breaker is kept per server and leg, so
// Prefill and Decode also name the leg that a claim is for.
type Role uint8

const (
	Prefill Role = 1 << iota
	Decode
	Both = Prefill | Decode
)

// Serves reports whether a server of role r takes legs of the given role.
func (r Role) Serves(leg Role) bool { return r&leg != 0 }

func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	case Both:
		return "both"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// Spec is what the configuration says of one server.
type Spec struct {
	URL       string // scheme and authority of the engine's HTTP server
	Rank      *int   // data-parallel rank behind URL; nil when the address is the server
	Role      Role
	Connector string // how decode obtains the KV; one of Connectors; empty: as the engine tells, nixl where it does not
	KVAddress string // host:port where other engines reach its KV; empty: see Server.KVHostPort
	Weights   string // version of the weights; servers of different ones are not paired
	Layout    string // likewise whatever else the KV depends on: engine version, dtype
	Native    bool   // it speaks SGLang's own API, /generate
	Group     string // servers of one step in lockstep; empty: it steps by itself
	Unit      string // what is scaled: its servers come and go together; empty: the address
	Elastic   bool   // the engine grows and shrinks in place, by data-parallel ranks
	Ordinal   *int   // of the unit in a set that loses its highest first; nil: any may go
	Variant   string // kind of hardware, as scaling tells it apart; empty: all are of one
	GPUs      string // servers with the same share GPUs, and one of them is awake; empty: its own
	Host      string // topology labels; empty is unknown
	Rack      string
	Zone      string
	Metrics   string // URL of its Prometheus metrics; empty: where its engine has them
	ORCA      string // host:port of its OpenRcaService (gRPC, in plain text); empty: none
	Drain     bool   // takes no new request; what is in flight runs out
	Events    string // ZMQ address of its KV events; empty: it publishes none
	Replay    string // ZMQ address that replays missed ones; empty: none
	EventBind bool   // the engine is in connect mode: Events is where the gateway listens for it
	// EventRanks is how many data-parallel ranks behind the address publish, each on ports
	// of its own, where the engine itself chooses among them; 0: one.
	EventRanks int
}

// maxEventRanks bounds the ports that one server's events may take.
const maxEventRanks = 1024

// ID is how everything else in Tandem names the server: "host:port", with
// "/dpN" behind it for a rank.
func (s Spec) ID() string {
	id := s.URL
	if u, err := url.Parse(s.URL); err == nil && u.Host != "" {
		id = u.Host
	}
	if s.Rank != nil {
		id += "/dp" + strconv.Itoa(*s.Rank)
	}
	return id
}

// Validate reports what is wrong with the spec, nil if nothing.
func (s Spec) Validate() error {
	u, err := url.Parse(s.URL)
	switch {
	case s.URL != "" && !strings.Contains(s.URL, "://"):
		return fmt.Errorf("server %q: add http:// in front: http://%s", s.URL, s.URL)
	case err != nil:
		return fmt.Errorf("server %q: %w", s.URL, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("server %q: want http://host:port or https://host:port", s.URL)
	case u.Host == "":
		return fmt.Errorf("server %q: has no host", s.URL)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
		return fmt.Errorf("server %q: want only scheme, host and port", s.URL)
	case s.Rank != nil && *s.Rank < 0:
		return fmt.Errorf("server %q: rank %d is negative", s.URL, *s.Rank)
	case s.EventRanks < 0 || s.EventRanks > maxEventRanks || s.EventRanks > 0 && s.Rank != nil:
		return fmt.Errorf("server %q: events-ranks: want 0 to %d, and no rank", s.URL, maxEventRanks)
	case s.Role == 0 || s.Role&^Both != 0:
		return fmt.Errorf("server %q: has no role", s.URL)
	case s.Metrics != "" && !strings.HasPrefix(s.Metrics, "http://") && !strings.HasPrefix(s.Metrics, "https://"):
		return fmt.Errorf("server %q: metrics %q: want http://host:port/path", s.URL, s.Metrics)
	case s.ORCA != "" && !isHostPort(s.ORCA):
		return fmt.Errorf("server %q: orca %q: want host:port", s.URL, s.ORCA)
	case s.Connector != "" && !slices.Contains(Connectors(), s.Connector):
		return fmt.Errorf("server %q: connector %q is not known (known: %s)", s.URL, s.Connector, strings.Join(Connectors(), ", "))
	}
	if _, _, err := s.kvHostPort(0); err != nil {
		return fmt.Errorf("server %q: kv-address: %w", s.URL, err)
	}
	return nil
}

// Connectors returns the ways that decode may obtain the KV.
func Connectors() []string {
	return []string{"nixl", "sglang", "mooncake", "offload", "p2p-nccl", "store", "trtllm", "llmd-sidecar", "aggregated"}
}

// kvHostPort is where other engines reach the server's KV: what the configuration
// says, else the host of its URL and the connector's usual port.
func (s Spec) kvHostPort(usual int) (host string, port int, err error) {
	if s.KVAddress == "" {
		u, err := url.Parse(s.URL)
		if err != nil {
			return "", 0, err
		}
		return u.Hostname(), usual, nil
	}
	host, text, err := net.SplitHostPort(s.KVAddress)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%q is no port", text)
	}
	return host, port, nil
}

func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}

// Server is one member of a snapshot: the spec as of that snapshot and the live
// state that all snapshots share.
type Server struct {
	Spec
	id    string
	class uint64
	fleet *Fleet
	*live
}

// InFlight returns the outstanding work of all gateways on the server, as far as
// this one knows.
func (s *Server) InFlight(leg Role, now time.Time) InFlight {
	return s.OwnInFlight(leg, now).Plus(s.othersInFlight(leg, now))
}

// FallsTo returns in how long the prefill work ahead on the server will have fallen to
// limit by the passing of time alone, false if it is there already or only news can
// bring it there.
func (s *Server) FallsTo(limit time.Duration, now time.Time) (in time.Duration, ok bool) {
	limit -= s.othersInFlight(Prefill, now).Queue
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok = s.work[LegIndex(Prefill)].FallsTo(limit, now)
	return in, ok && in > 0
}

// FreshLoad returns the load that the engine reports, all unknown once it is old.
func (s *Server) FreshLoad(now time.Time) load.Load {
	if load := s.Load(); load.FreshAt(now, s.fleet.cfg.ProbeInterval) {
		return load
	}
	return load.Load{}
}

// Tokens returns the load of the server in tokens: prompt tokens that wait for
// prefill, and those of the sequences that run. What the engine counts is preferred;
// where it counts requests only, the gateways' own counts stand in.
func (s *Server) Tokens(now time.Time) (waiting, running float64) {
	load := s.FreshLoad(now)
	waiting, running = float64(s.InFlight(Prefill, now).Tokens), float64(s.InFlight(Decode, now).Tokens)
	if load.WaitingTokens.Known {
		waiting = load.WaitingTokens.Value
	}
	if load.RunningTokens.Known {
		running = load.RunningTokens.Value
	}
	return waiting, running
}

// needs reports whether a request cannot do without the leg on such servers:
// decode always, prefill where decode never computes a prompt (SGLang).
func (s *Server) needs(leg Role) bool { return leg == Decode || s.Connector() == "sglang" }

// ServesAlone reports whether the server, where it decodes, also serves requests whole.
func (s *Server) ServesAlone() bool { return !s.needs(Prefill) }

// KVHostPort is where other engines reach the server's KV: as configured, else at the
// host of its URL and the port that the engine tells, or the usual one.
func (s *Server) KVHostPort(usual int) (host string, port int) {
	if told := s.Identity().KVPort; told != 0 {
		usual = told
	}
	host, port, _ = s.kvHostPort(usual) // the spec was validated
	return host, port
}

// UnitName names what is scaled, of which the server is a part.
func (s *Server) UnitName() string { return cmp.Or(s.Unit, s.URL) }

// ID names the server; see Spec.ID.
func (s *Server) ID() string { return s.id }
