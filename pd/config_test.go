package pd

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/scalefromzero"
)

// Settings that make no sense are refused, and each of them alone is.
func TestConfig_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		valid  bool
	}{
		"the default":                      {func(*Config) {}, true},
		"no wait for unresponsive servers": {func(c *Config) { c.UnresponsiveWait = 0 }, true},
		"no retries":                       {func(c *Config) { c.MaxRetries, c.RetryRatio, c.RetryFloor = 0, 0, 0 }, true},
		"a retry for each request":         {func(c *Config) { c.RetryRatio = 1 }, true},
		"no time for prefill":              {func(c *Config) { c.PrefillTimeout = 0 }, false},
		"no time for the first event":      {func(c *Config) { c.FirstEventTimeout = 0 }, false},
		"no time for the next":             {func(c *Config) { c.IdleTimeout = 0 }, false},
		"no time for an answer":            {func(c *Config) { c.AnswerTimeout = -time.Second }, false},
		"no age of a hand-off":             {func(c *Config) { c.HandoffAge = 0 }, false},
		"a negative wait":                  {func(c *Config) { c.UnresponsiveWait = -1 }, false},
		"negative retries":                 {func(c *Config) { c.MaxRetries = -1 }, false},
		"a negative ratio":                 {func(c *Config) { c.RetryRatio = -0.1 }, false},
		"more retries than requests":       {func(c *Config) { c.RetryRatio = 1.1 }, false},
		"a gap that is negative":           {func(c *Config) { c.DecodePieces = -1 }, false},
		"no pieces on decode":              {func(c *Config) { c.DecodePieces = 0 }, true},
		"a negative floor":                 {func(c *Config) { c.RetryFloor = -1 }, false},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for mode, valid := range map[BindMode]bool{Late: true, BindMode("arrival"): true, BindMode(""): false, BindMode("never"): false} {
		if err := mode.Validate(); (err == nil) != valid {
			t.Errorf("%q: %v", mode, err)
		}
	}
	for hold, valid := range map[scalefromzero.Config]bool{
		{}: true, scalefromzero.Default(): true, {MaxWait: time.Minute, MaxWaiting: 1}: true, {MaxWait: -1}: false, {MaxWaiting: -1}: false,
	} {
		if err := hold.Validate(); (err == nil) != valid {
			t.Errorf("%+v: %v", hold, err)
		}
	}
}
