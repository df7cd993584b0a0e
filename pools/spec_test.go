package pools

import (
	"slices"
	"strings"
	"testing"
)

// A mistake in what is said of a server is named before anything is sent to it, and what is
// allowed is taken to its last value.
func TestSpec_MistakesAreNamed(t *testing.T) {
	rank, negative := 0, -1
	for _, c := range []struct {
		change func(*Spec)
		names  string // empty: it is taken
	}{
		{func(*Spec) {}, ""},
		{func(s *Spec) { s.URL = "" }, "want http://host:port"},
		{func(s *Spec) { s.URL = "10.0.0.1:8000" }, "add http:// in front"},
		{func(s *Spec) { s.URL = "http://10.0.0.1:x" }, "invalid port"},
		{func(s *Spec) { s.URL = "https://10.0.0.1" }, ""},
		{func(s *Spec) { s.URL = "ftp://10.0.0.1" }, "want http://host:port"},
		{func(s *Spec) { s.URL = "http:///" }, "has no host"},
		{func(s *Spec) { s.URL = "http://10.0.0.1:8000/" }, ""},
		{func(s *Spec) { s.URL = "http://10.0.0.1:8000/v1" }, "only scheme, host and port"},
		{func(s *Spec) { s.URL = "http://10.0.0.1:8000?a=b" }, "only scheme, host and port"},
		{func(s *Spec) { s.URL = "http://me@10.0.0.1:8000" }, "only scheme, host and port"},
		{func(s *Spec) { s.Rank = &rank }, ""},
		{func(s *Spec) { s.Rank = &negative }, "rank -1 is negative"},
		{func(s *Spec) { s.EventRanks = -1 }, "events-ranks"},
		{func(s *Spec) { s.EventRanks = 1024 }, ""},
		{func(s *Spec) { s.EventRanks = 1025 }, "events-ranks"},
		{func(s *Spec) { s.EventRanks, s.Rank = 1, &rank }, "no rank"},
		{func(s *Spec) { s.Role = 0 }, "has no role"},
		{func(s *Spec) { s.Role = 4 }, "has no role"},
		{func(s *Spec) { s.Metrics = "http://10.0.0.1:9090/metrics" }, ""},
		{func(s *Spec) { s.Metrics = "https://10.0.0.1:9090/metrics" }, ""},
		{func(s *Spec) { s.Metrics = "10.0.0.1:9090" }, `metrics "10.0.0.1:9090"`},
		{func(s *Spec) { s.ORCA = "10.0.0.1:9001" }, ""},
		{func(s *Spec) { s.ORCA = "10.0.0.1" }, `orca "10.0.0.1"`},
		{func(s *Spec) { s.ORCA = ":9001" }, `orca ":9001"`},
		{func(s *Spec) { s.ORCA = "10.0.0.1:" }, `orca "10.0.0.1:"`},
		{func(s *Spec) { s.Connector = "" }, ""},
		{func(s *Spec) { s.Connector = "pigeon" }, `connector "pigeon"`},
		{func(s *Spec) { s.KVAddress = "10.0.0.2:1" }, ""},
		{func(s *Spec) { s.KVAddress = "10.0.0.2:65535" }, ""},
		{func(s *Spec) { s.KVAddress = "10.0.0.2:0" }, "kv-address"},
		{func(s *Spec) { s.KVAddress = "10.0.0.2:65536" }, "kv-address"},
		{func(s *Spec) { s.KVAddress = "10.0.0.2:kv" }, "kv-address"},
		{func(s *Spec) { s.KVAddress = "10.0.0.2" }, "kv-address"},
		{func(s *Spec) { s.Events, s.Replay = "tcp://10.0.0.1:5557", "tcp://[::1]:5558" }, ""},
		{func(s *Spec) { s.Events = "ipc:///run/events" }, ""},
		{func(s *Spec) { s.Events = "tcp://*:5557" }, "name its host"},
		{func(s *Spec) { s.Events, s.EventBind = "tcp://*:5557", true }, ""},
		{func(s *Spec) { s.Events, s.EventBind = "tcp://*:*", true }, ""},
		{func(s *Spec) { s.Events = "tcp://10.0.0.1:*" }, `"*" is not a valid port: want 1 to 65535`},
		{func(s *Spec) { s.Events = "10.0.0.1:5557" }, "want tcp://host:port"},
		{func(s *Spec) { s.Events = "http://10.0.0.1:5557" }, "want tcp://host:port"},
		{func(s *Spec) { s.Events = "tcp://:5557" }, "want tcp://host:port"},
		{func(s *Spec) { s.Events = "tcp://10.0.0.1" }, "want tcp://host:port"},
		{func(s *Spec) { s.Events = "tcp://10.0.0.1:99999" }, `"99999" is not a valid port: want 1 to 65535`},
		{func(s *Spec) { s.Replay = "tcp://*:5558" }, `replay "tcp://*:5558"`},
		{func(s *Spec) { s.URL = "http://10.0.0.1:65535" }, ""},
		{func(s *Spec) { s.URL = "http://10.0.0.1" }, ""},
		{func(s *Spec) { s.URL = "http://10.0.0.1:99999" }, `"99999" is not a valid port`},
		{func(s *Spec) { s.URL = "http://10.0.0.1:0" }, `"0" is not a valid port`},
	} {
		s := spec("http://10.0.0.1:8000", Both)
		c.change(&s)
		switch err := s.Validate(); {
		case err == nil && c.names != "":
			t.Errorf("%+v is taken, want %q", s, c.names)
		case err != nil && (c.names == "" || !strings.Contains(err.Error(), c.names)):
			t.Errorf("want %q, got %v", c.names, err)
		}
	}
	for _, connector := range Connectors() {
		s := spec("http://10.0.0.1:8000", Both)
		if s.Connector = connector; s.Validate() != nil {
			t.Errorf("%s is listed and refused: %v", connector, s.Validate())
		}
	}
}

// A server is named by its address, and a rank behind it by both.
func TestSpec_ID(t *testing.T) {
	rank := 3
	for want, s := range map[string]Spec{
		"10.0.0.1:8000":     {URL: "http://10.0.0.1:8000"},
		"10.0.0.1:8000/dp3": {URL: "https://10.0.0.1:8000", Rank: &rank},
		"pod":               {URL: "pod"},
	} {
		if got := s.ID(); got != want {
			t.Errorf("%+v is %q, want %q", s, got, want)
		}
	}
}

// Other engines fetch KV where the configuration says, else at the host of the server and the
// port that its engine reports, else at the usual one. Hand-offs may name these hosts.
func TestServer_WhereItsKVIs(t *testing.T) {
	for _, c := range []struct {
		kvAddress string
		reported  int
		host      string
		port      int
		hosts     []string
	}{
		{"", 0, "10.0.0.1", 5600, []string{"10.0.0.1"}},
		{"", 7000, "10.0.0.1", 7000, []string{"10.0.0.1"}},
		{"10.1.0.1:7100", 7000, "10.1.0.1", 7100, []string{"10.0.0.1", "10.1.0.1"}},
		{"10.0.0.1:7100", 0, "10.0.0.1", 7100, []string{"10.0.0.1"}},
	} {
		s := NewServer(Spec{URL: "http://10.0.0.1:8000", Role: Prefill, KVAddress: c.kvAddress})
		s.SetIdentity(Identity{KVPort: c.reported}, true)
		host, port := s.KVHostPort(5600)
		if host != c.host || port != c.port || !slices.Equal(s.KVHosts(), c.hosts) {
			t.Errorf("%+v: %s and %d, hosts %v", c, host, port, s.KVHosts())
		}
	}
}
