package discovery

import (
	"net"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

func TestParseRole(t *testing.T) {
	for name, want := range map[string]pools.Role{"prefill": pools.Prefill, "decode": pools.Decode, "both": pools.Both, "": 0, "Both": 0} {
		if got, err := ParseRole(name); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
}

func TestIsName(t *testing.T) {
	for url, want := range map[string]bool{"dns+http://a:1": true, "srv+http://a": true, "http://a:1": false, "https://a": false, "": false} {
		if got := IsName(pools.Spec{URL: url}); got != want {
			t.Errorf("%q: %v", url, got)
		}
	}
}

// A name says of its servers what one server says of itself, and is checked likewise.
func TestValidateName_TheRestIsThatOfAServer(t *testing.T) {
	for _, e := range []Entry{{Connector: "pigeon"}, {ORCA: "x"}, {KVAddress: "x"}} {
		if e.URL = "dns+http://prefill:8000"; ValidateName(e.Spec(pools.Prefill)) == nil {
			t.Errorf("%+v is taken", e)
		}
	}
	if ValidateName(Entry{URL: "dns+http://prefill:8000"}.Spec(0)) == nil {
		t.Error("without a role it is taken")
	}
	if ValidateName(pools.Spec{URL: "dns+http://a:x", Role: pools.Both}) == nil {
		t.Error("what is no URL is taken")
	}
}

func TestDNSConfig_Validate(t *testing.T) {
	for _, c := range []struct {
		cfg DNSConfig
		ok  bool
	}{
		{DefaultDNS(), true}, {DNSConfig{Interval: 1}, true}, {DNSConfig{}, false}, {DNSConfig{Interval: -1}, false},
		{DNSConfig{Interval: 1, Server: "10.0.0.1:53"}, true}, {DNSConfig{Interval: 1, Server: "10.0.0.1"}, false},
		{DNSConfig{Interval: 1, Server: ":53"}, false}, {DNSConfig{Interval: 1, Server: "10.0.0.1:"}, false},
	} {
		if err := c.cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}

// A name that cannot be one is not asked for.
func TestResolve_WhatIsNoNameIsAnError(t *testing.T) {
	for _, name := range []string{"dns+http://a:99999", "dns+http://a", "dns+http://a:x"} {
		if targets, err := resolve(t.Context(), new(net.Resolver), name); err == nil {
			t.Errorf("%s stands for %v", name, targets)
		}
	}
}

// A record of the longest size is read; what says no role, or of no server, is not.
func TestParseRecord(t *testing.T) {
	record := `{"url":"http://10.0.0.1:1","role":"both"}`
	for name, c := range map[string]struct {
		record string
		ok     bool
	}{
		"the longest": {record + strings.Repeat(" ", maxRecord-len(record)), true},
		"longer":      {record + strings.Repeat(" ", maxRecord+1-len(record)), false},
		"no role":     {`{"url":"http://10.0.0.1:1"}`, false},
		"no server":   {`{"url":"10.0.0.1:1","role":"both"}`, false},
		"no JSON":     {`url`, false},
	} {
		if spec, err := parseRecord([]byte(c.record)); (err == nil) != c.ok || c.ok && spec.ID() != "10.0.0.1:1" {
			t.Errorf("%s: %v, %v", name, spec, err)
		}
	}
}
