package pools

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Spec is the configuration of one server.
type Spec struct {
	URL       string // scheme and authority of the engine's HTTP server
	Rank      *int   // data-parallel rank behind URL; nil when the address is the server
	Role      Role
	Connector string // how decode obtains the KV; one of Connectors; empty: as the engine reports, nixl where it does not
	KVAddress string // host:port where other engines reach its KV; empty: see Server.KVHostPort
	Weights   string // version of the weights; servers of different ones are not paired
	Layout    string // likewise whatever else the KV depends on: engine version, dtype
	Store     string // KV store outside the engines that it shares with the servers of the same name; empty: see Server.Store
	Native    bool   // it speaks SGLang's own API, /generate
	Group     string // servers of one step in lockstep; empty: it steps by itself
	Unit      string // what is scaled: its servers come and go together; empty: the address
	Elastic   bool   // the engine grows and shrinks in place, by data-parallel ranks
	Ordinal   *int   // of the unit in a set that loses its highest first; nil: any may go
	Variant   string // kind of hardware, as scaling distinguishes it; empty: all are of one
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
	if port := u.Port(); port != "" {
		if _, err := parsePort(port); err != nil {
			return fmt.Errorf("server %q: %w", s.URL, err)
		}
	}
	if _, _, err := s.kvHostPort(0); err != nil {
		return fmt.Errorf("server %q: kv-address: %w", s.URL, err)
	}
	if err := checkPublished(s.Events, s.EventBind); err != nil {
		return fmt.Errorf("server %q: events %q: %w", s.URL, s.Events, err)
	}
	if err := checkPublished(s.Replay, false); err != nil {
		return fmt.Errorf("server %q: replay %q: %w", s.URL, s.Replay, err)
	}
	return nil
}

// checkPublished says what is wrong with a ZMQ address that the gateway is to connect to, or to bind. That of the
// engine's own configuration, tcp://*:5557, is where the engine binds.
func checkPublished(address string, binds bool) error {
	if address == "" || strings.HasPrefix(address, "ipc://") {
		return nil
	}
	rest, isTCP := strings.CutPrefix(address, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	if !isTCP || err != nil || host == "" {
		return errors.New("want tcp://host:port, or ipc:// and a path")
	}
	if host == "*" && !binds {
		return errors.New("* is where the engine binds: name its host")
	}
	if binds && port == "*" {
		return nil
	}
	_, err = parsePort(port)
	return err
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
	if port, err = parsePort(text); err != nil {
		return "", 0, err
	}
	return host, port, nil
}

func parsePort(text string) (int, error) {
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("%q is not a valid port: want 1 to 65535", text)
	}
	return port, nil
}

func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}
