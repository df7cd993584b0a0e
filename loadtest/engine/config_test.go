package engine

import (
	"testing"
)

func TestConfig_RefusesWhatCannotWork(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Role = "leader" },
		func(c *Config) { c.TimeScale = -1 },
		func(c *Config) { c.MaxModelLen = c.Blocks*c.BlockSize + 1 },
		func(c *Config) { c.ReplayEndpoint = "tcp://*:1" },
		func(c *Config) { c.Listen = "nonsense" },
		func(c *Config) { c.EventsEndpoint = "carrier-pigeon://x" },
	} {
		cfg := Default()
		change(&cfg)
		if e, err := Start(t.Context(), cfg); err == nil {
			t.Errorf("started with %+v", cfg)
			must(t, e.Close())
		}
	}
}
