package cost

import (
	"testing"
	"time"
)

// What settings may be is refused before anything runs with it: each one that makes no sense
// by itself, and nothing that does.
func TestModel_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Model)
		valid  bool
	}{
		"the default":                {func(*Model) {}, true},
		"no rule is the joint one":   {func(m *Model) { m.Rule = "" }, true},
		"another rule":               {func(m *Model) { m.Rule = LeastLoad }, true},
		"a second leg for nothing":   {func(m *Model) { m.HandOff = 0 }, true},
		"blocks of one token":        {func(m *Model) { m.BlockTokens = 1 }, true},
		"adapters for nothing":       {func(m *Model) { m.Adapter = AdapterCost{} }, true},
		"KV of a known size":         {func(m *Model) { m.KVBytesPerToken = 2304 }, true},
		"KV of negative size":        {func(m *Model) { m.KVBytesPerToken = -1 }, false},
		"blocks without tokens":      {func(m *Model) { m.BlockTokens = 0 }, false},
		"chunks without tokens":      {func(m *Model) { m.ChunkTokens = 0 }, false},
		"a second leg back in time":  {func(m *Model) { m.HandOff = -time.Nanosecond }, false},
		"a rule that is not known":   {func(m *Model) { m.Rule = "cheapest" }, false},
		"adapters that load in less": {func(m *Model) { m.Adapter.Load = -time.Nanosecond }, false},
		"adapters that swap in less": {func(m *Model) { m.Adapter.Swap = -time.Nanosecond }, false},
		"places freed before":        {func(m *Model) { m.Adapter.Slot = -time.Nanosecond }, false},
	} {
		m := Default()
		c.change(&m)
		if err := m.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLinkPrior_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		link  Link
		valid bool
	}{
		"without latency":  {Link{BytesPerSecond: 1}, true},
		"with both":        {Link{time.Second, 1e9}, true},
		"no bandwidth":     {Link{time.Second, 0}, false},
		"negative latency": {Link{-time.Nanosecond, 1e9}, false},
	} {
		for distance := range distances {
			prior := DefaultLinks()
			prior[distance] = c.link
			if err := prior.Validate(); (err == nil) != c.valid {
				t.Errorf("%s, class %d: %v", name, distance, err)
			}
		}
	}
}
