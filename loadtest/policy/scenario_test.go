package policy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestShipped_ScenariosLoad(t *testing.T) {
	names := Shipped()
	for _, want := range []string{"A", "B", "C", "D", "E", "F", "G", "A3", "G3", "racks-apart", "half-slow", "noise-03", "noise-06",
		"old-gauges", "lost-events", "sixteen", "decode-bound", "lockstep", "sick-link", "bursts", "overload"} {
		if !slices.Contains(names, want) {
			t.Errorf("no scenario %s among %v", want, names)
		}
	}
	for _, name := range names {
		if s := scenario(t, name); s.Name != name || s.Title == "" {
			t.Errorf("scenario %s is named %q, %q", name, s.Name, s.Title)
		}
	}
}

// What a scenario does not say it has from the one that it is like.
func TestLoadScenario_ChangesWhatItIsLike(t *testing.T) {
	a, b, d := scenario(t, "A"), scenario(t, "B"), scenario(t, "D")
	if b.Hardware.NIC != 12.5e9 || b.Hardware.PrefillRate != a.Hardware.PrefillRate || b.Overlap || b.Prefill != 8 {
		t.Errorf("B is %+v", b)
	}
	if d.Oversubscribe != 8 || d.SLO.TTFT != 2 || d.Hardware.KVBytesPerToken != 70272 {
		t.Errorf("D is %+v", d)
	}
	if a.Hardware.NIC != 25e9 {
		t.Error("reading B changed A")
	}
}

func TestLoadScenario_ReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte("name: mine\nlike: B\nspeedup: 1.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := scenario(t, path); s.Name != "mine" || s.Speedup != 1.1 || s.Oversubscribe != 8 {
		t.Errorf("read %+v", s)
	}
}

func TestLoadScenario_SaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"like: B\nspedup: 2":         "spedup",
		"like: nothing":              "neither a file nor one of",
		"like: B\nprefill: 9":        "prefill_racks",
		"like: B\nlockstep_ranks: 3": "lockstep_ranks",
		"like: B\nspeedup: 0":        "must be positive",
		"like: B\nagents: {seed: 1}": "agents: products",
		"like: agents-06\nagents: {turn_seconds: {least: 3, most: 2}}": "agents: turn_seconds",
		"like: B\nevent_loss: 2":  "event_loss",
		"like: B\nslow: [8]":      "no prefill server 8",
		"like: B\nburst_every: 3": "burst_size",
		"like: B\nvariants: [{name: a, per_token: 1, per_square: 1}]":  "want prefill servers",
		"prefill: 1\ndecode: 1\nprefill_racks: [1]\ndecode_racks: [1]": "hardware",
	} {
		if _, err := ParseScenario([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func TestFindPolicies_SaysWhichThereAre(t *testing.T) {
	if all, err := FindPolicies([]string{"all"}); err != nil || len(all) != len(Policies()) {
		t.Errorf("all: %d, %v", len(all), err)
	}
	some, err := FindPolicies([]string{"dynamo", "tandem-late"})
	if err != nil || len(some) != 2 || some[1] != lateBinding {
		t.Errorf("some: %v, %v", some, err)
	}
	if _, err := FindPolicies([]string{"nobody"}); err == nil || !strings.Contains(err.Error(), "tandem-late") {
		t.Errorf("error %v, want one that lists the policies", err)
	}
	for _, p := range Policies() {
		if p.Name == "" || p.Source == "" || p.New == nil {
			t.Errorf("policy %+v is incomplete", p)
		}
	}
}

// Two prefill servers of one rack share its uplink, unless each has its own: then all that
// they share is the decode server.
func TestScenario_OwnUplinksAreNotShared(t *testing.T) {
	for text, share := range map[string]bool{"like: B\n": true, "like: B\nown_uplink: 3e9\n": false} {
		s, err := ParseScenario([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		c := &cluster{scenario: s, hw: &s.Hardware, cal: &calendar{}}
		capacity := c.build()
		far := s.Decode - 1 // in another rack than the first two
		first, second := c.routes[far], c.routes[s.Decode+far]
		if got := slices.Contains(second, first[2]); got != share {
			t.Errorf("%q: routes %v and %v: the uplink is shared: %v", text, first, second, got)
		}
		if !share && capacity[first[2]] != 3e9 {
			t.Errorf("its own uplink has %v bytes/s", capacity[first[2]])
		}
	}
}
