package pools

import (
	"strings"
	"testing"
	"time"
)

// Each setting is refused where it can mean nothing, and the reason names it; its last good
// value is taken.
func TestConfig_SettingsAreCheckedAtTheirEdges(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		names  string // the setting that the error names; empty: it is taken
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.ProbeInterval = 0 }, "probe-interval"},
		{func(c *Config) { c.ProbeInterval = 1 }, ""},
		{func(c *Config) { c.ProbeTimeout = 0 }, "probe-timeout"},
		{func(c *Config) { c.ProbeTimeout = 1 }, ""},
		{func(c *Config) { c.EjectShare = -0.1 }, "eject-share"},
		{func(c *Config) { c.EjectShare = 0 }, ""},
		{func(c *Config) { c.EjectShare = 1 }, ""},
		{func(c *Config) { c.EjectShare = 1.1 }, "eject-share"},
		{func(c *Config) { c.ORCA = "" }, ""},
		{func(c *Config) { c.ORCA = "JSON" }, ""},
		{func(c *Config) { c.ORCA = "BIN" }, ""},
		{func(c *Config) { c.ORCA = "XML" }, "orca"},
		{func(c *Config) { c.Forgetting = 0 }, "forgetting"},
		{func(c *Config) { c.Forgetting = 1 }, ""},
		{func(c *Config) { c.SlowStart = -1 }, "slow-start"},
		{func(c *Config) { c.SlowStart = 0 }, ""},
		{func(c *Config) { c.Breaker.Consecutive = 0 }, "breaker-failures"},

		{func(c *Config) { c.Adapters.PerServer = -1 }, "adapters-per-server"},
		{func(c *Config) { c.Adapters.PerServer = 0 }, ""},
		{func(c *Config) { c.Adapters.Idle = -1 }, "adapter-idle"},
		{func(c *Config) { c.Adapters.Idle = 0 }, ""},
		{func(c *Config) { c.Adapters.Timeout = 0 }, "adapter-timeout"},
		{func(c *Config) { c.Adapters.Timeout = 1 }, ""},
		{func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}, {Name: "eve"}} }, ""},
		{func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "ada"}, {Name: "eve"}, {Name: "ada"}} }, "adapter ada is named twice"},

		{func(c *Config) { c.Sleep.MinAwake = -1 }, "sleep-min-awake"},
		{func(c *Config) { c.Sleep.MinAwake = 0 }, ""},
		{func(c *Config) { c.Sleep.Idle = -1 }, "sleep-idle"},
		{func(c *Config) { c.Sleep.Idle = 0 }, ""},
		{func(c *Config) { c.Sleep.Wake = -1 }, "sleep-wake"},
		{func(c *Config) { c.Sleep.Wake = 0 }, ""},
		{func(c *Config) { c.Sleep.Timeout = 0 }, "sleep-timeout"},
		{func(c *Config) { c.Sleep.Timeout = 1 }, ""},
		{func(c *Config) { c.Sleep.Level = 0 }, "sleep-level 0"},
		{func(c *Config) { c.Sleep.Level = 2 }, ""},
		{func(c *Config) { c.Sleep.Level = 3 }, "sleep-level 3"},
	} {
		cfg := Default()
		c.change(&cfg)
		switch err := cfg.Validate(); {
		case err == nil && c.names != "":
			t.Errorf("%s is taken", c.names)
		case err != nil && (c.names == "" || !strings.Contains(err.Error(), c.names)):
			t.Errorf("want %q, got %v", c.names, err)
		}
	}
}

// What a fleet was made with is what its users are told.
func TestFleet_ReturnsItsConfiguration(t *testing.T) {
	cfg := Default()
	cfg.ProbeInterval, cfg.EjectShare = 3*time.Second, 0.25
	f := NewFleet(cfg, nil)
	if f.Config().ProbeInterval != 3*time.Second || f.ProbeInterval() != 3*time.Second || f.EjectShare() != 0.25 {
		t.Errorf("%v, %v, %v", f.Config().ProbeInterval, f.ProbeInterval(), f.EjectShare())
	}
}
