package pools

import (
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

func TestRole_String(t *testing.T) {
	for role, want := range map[Role]string{Prefill: "prefill", Decode: "decode", Both: "both", 0: "role(0)", 4: "role(4)"} {
		if got := role.String(); got != want {
			t.Errorf("%d is %q, want %q", role, got, want)
		}
	}
}

// upFleet is a fleet whose servers are all up and serve the model m.
func upFleet(t *testing.T, change func(*Config), specs ...Spec) *Fleet {
	t.Helper()
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	f := newFleetOf(t, cfg)
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Servers() {
		s.ProbePassed(s.Health(), []Model{{ID: "m"}}, time.Now())
	}
	return f
}

// claim takes a place that is given back when the test ends, if it was not before.
func claim(t *testing.T, s *Server, leg Role, work curve.Work) *Lease {
	t.Helper()
	l, err := s.Claim(leg, work, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	return l
}

// What the engine counts is preferred, each figure by itself; the gateways' own counts stand
// in for what it leaves out, and for all of it once its word is old.
func TestServer_TokensAreTheEnginesElseOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, nil, spec("http://10.0.0.1:1", Both))
		s := f.Servers()[0]
		claim(t, s, Prefill, curve.Work{Tokens: 100})
		claim(t, s, Decode, curve.Work{Tokens: 30})
		expect := func(when string, waiting, running float64) {
			t.Helper()
			if w, r := s.Tokens(time.Now()); w != waiting || r != running {
				t.Errorf("%s: %v waiting and %v running, want %v and %v", when, w, r, waiting, running)
			}
		}
		expect("the engine says nothing", 100, 30)
		s.ReportLoad(load.Load{WaitingTokens: reading(700), At: time.Now()})
		expect("it tells what waits", 700, 30)
		s.ReportLoad(load.Load{RunningTokens: reading(800), At: time.Now()})
		expect("it tells what runs", 100, 800)
		time.Sleep(3 * f.ProbeInterval())
		expect("three probes later", 100, 800)
		time.Sleep(time.Nanosecond)
		expect("later", 100, 30)
	})
}

// SGLang's decode servers never compute a prompt, so they are nothing without a prefill.
func TestServer_ServesAloneButForSGLang(t *testing.T) {
	for connector, want := range map[string]bool{"nixl": true, "": true, "aggregated": true, "sglang": false} {
		if got := NewServer(Spec{URL: "http://10.0.0.1:1", Role: Decode, Connector: connector}).ServesAlone(); got != want {
			t.Errorf("connector %q: %v", connector, got)
		}
	}
}

func TestServer_UnitIsItsAddressUnlessNamed(t *testing.T) {
	s := NewServer(spec("http://10.0.0.1:1", Both))
	if s.UnitName() != "http://10.0.0.1:1" {
		t.Error(s.UnitName())
	}
	if s.Unit = "pod-7"; s.UnitName() != "pod-7" {
		t.Error(s.UnitName())
	}
}

// The number of a group is the same for those that step together, and none for a server by
// itself, also one that was in a group.
func TestServer_GroupNumber(t *testing.T) {
	f := groupFleet(t, 2, nil)
	numbers := func() (n []int) {
		for _, s := range f.Servers() {
			n = append(n, s.GroupNumber())
		}
		return n
	}
	if n := numbers(); n[0] != 0 || n[1] != 1 || n[2] != 1 {
		t.Errorf("one by itself and a group: %v", n)
	}
	applyGroup(t, f, 2, func(i int, s *Spec) { s.Group = []string{"wide", "other"}[i] })
	if n := numbers(); n[0] != 0 || n[1] != 1 || n[2] != 2 {
		t.Errorf("two groups: %v", n)
	}
	applyGroup(t, f, 2, func(i int, s *Spec) { s.Group = []string{"wide", ""}[i] })
	if n := numbers(); n[0] != 0 || n[1] != 1 || n[2] != 0 {
		t.Errorf("one has left: %v", n)
	}
}

// A page's URL is what parsing its text gives, whatever the server's own looks like.
func TestServer_PageURLIsWhatParsingGives(t *testing.T) {
	for _, server := range []string{"http://10.0.0.1:8000", "https://e.example", "http://[::1]:8000", "http://e:1/"} {
		s := NewServer(Spec{URL: server, Role: Decode})
		for _, page := range []string{"/health", "/v1/models", "/server_info?config_format=json", "/a%2Fb", "/a#b"} {
			want, err := url.Parse(server + page)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.PageURL(page); err != nil || got.String() != want.String() || got.Host != want.Host || got.Path != want.Path {
				t.Errorf("%s of %s: %v, %v", page, server, got, err)
			}
		}
		if got, err := s.PageURL("http://elsewhere:9/metrics"); err != nil || got.Host != "elsewhere:9" {
			t.Errorf("elsewhere: %v, %v", got, err)
		}
	}
	if _, err := NewServer(Spec{URL: "http://10.0.0.1:x", Role: Decode}).PageURL("http://10.0.0.1:x"); err == nil {
		t.Error("what is no URL has a page")
	}
}
