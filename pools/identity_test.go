package pools

import (
	"testing"
	"time"
)

func TestIdentity_IsSince(t *testing.T) {
	for version, want := range map[string]bool{
		"0.32.1rc1+cu130": true, "v0.32.0": true, "0.32": true, "0.33.0": true, "1.0.0": true, "1.31": true,
		"0.31.9": false, "": false, "0": false, "main": false, "x.32": false, "0.x": false, "1.x": false, "0.32rc1": false,
	} {
		if got := (Identity{Version: version}).IsSince(0, 32); got != want {
			t.Errorf("%q is of 0.32 or later: %v", version, got)
		}
	}
}

// SGLang's releases differ in the third number. A build or candidate of a release may lack what the release has.
func TestIdentity_MeetsAnywhere(t *testing.T) {
	for version, want := range map[string]bool{
		"0.5.22": true, "v0.5.22": true, "0.5.22.post1": true, "0.5.22+cu130": true, "0.5.23rc1": true, "0.5.23.dev5+g8e2a469b3": true, "0.6.0": true, "0.6": true, "1.0": true,
		"0.5.21": false, "0.5.9": false, "0.5.22rc1": false, "0.5.22.dev93+g8e2a469b3": false, "0.5": false, "0.4.30": false, "": false, "main": false, "0.5.x": false,
	} {
		s := NewServer(Spec{URL: "http://10.0.0.1:1", Role: Both})
		if s.SetIdentity(Identity{Engine: "sglang", Version: version}, true); s.MeetsAnywhere() != want {
			t.Errorf("%q is of 0.5.22 or later: %v", version, !want)
		}
	}
	s := NewServer(Spec{URL: "http://10.0.0.1:1", Role: Both})
	if s.SetIdentity(Identity{Engine: "vllm", Version: "0.32.0"}, true); s.MeetsAnywhere() {
		t.Error("vLLM has no rooms")
	}
}

// Of a build between two releases neither is certain.
func TestIdentity_IsBefore(t *testing.T) {
	for version, want := range map[string]bool{
		"0.31.9": true, "v0.31.0+cu130": true, "0.32.0": false, "1.0.0": false, "": false, "main": false, "0.31.1.dev93+g8e2a469b3": false,
	} {
		if got := (Identity{Version: version}).IsBefore(0, 32); got != want {
			t.Errorf("%q is before 0.32: %v", version, got)
		}
	}
}

// What an answer has shown of an engine is true until it is started anew, when another version
// may have taken its place; that it counts cached tokens is a setting and stays.
func TestCapabilities_AreOfOneIncarnation(t *testing.T) {
	s := NewServer(spec("http://10.0.0.1:1", Both))
	if s.ReportsCachedTokens() {
		t.Error("it counts cached tokens before it has said so")
	}
	restart := func() {
		before := s.Incarnation()
		s.MarkDown("connection refused")
		if s.Incarnation() != before {
			t.Error("a server that is down is a new incarnation")
		}
		s.ProbePassed(s.Health(), nil, time.Now())
		s.ProbePassed(s.Health(), nil, time.Now())
		if s.Incarnation() != before+1 {
			t.Errorf("up again it is incarnation %d after %d", s.Incarnation(), before)
		}
	}
	s.RecordCachedTokens()
	for round := range 2 {
		restart()
		if !s.ReportsTokenIDs() {
			t.Errorf("round %d: it is taken not to know token ids", round)
		}
		if s.RecordNoTokenIDs(); s.ReportsTokenIDs() {
			t.Errorf("round %d: it is taken to know token ids", round)
		}
		if !s.RecordRetains() || s.RecordRetains() {
			t.Errorf("round %d: that it keeps blocks is not news once", round)
		}
		if !s.ReportsCachedTokens() {
			t.Errorf("round %d: that it counts cached tokens is forgotten", round)
		}
	}
}

// Whether there is something left to ask the engine is kept with what it said.
func TestIdentity_IsAskedUntilItIsWhole(t *testing.T) {
	s := NewServer(Spec{URL: "http://10.0.0.1:1", Role: Both})
	if s.Identified() || s.Connector() != "nixl" {
		t.Errorf("before it was asked: %v, connector %q", s.Identified(), s.Connector())
	}
	s.SetIdentity(Identity{Engine: "vllm", Connector: "mooncake"}, false)
	if s.Identified() || s.Identity().Engine != "vllm" || s.Connector() != "mooncake" {
		t.Errorf("a half answer: %v, %+v", s.Identified(), s.Identity())
	}
	if s.SetIdentity(Identity{Engine: "vllm"}, true); !s.Identified() {
		t.Error("a whole answer leaves something to ask")
	}
	s.Spec.Connector = "store"
	if s.Connector() != "store" {
		t.Errorf("the configuration says store, and it is %q", s.Connector())
	}
	var none *serverState
	if none.Identity() != (Identity{}) {
		t.Error("a server outside a fleet has an identity")
	}
}
