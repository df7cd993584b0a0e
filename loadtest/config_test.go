package loadtest

import (
	"strings"
	"testing"
	"time"
)

func TestValidate_NamesTheFault(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.URL = "http://example.com" }, "--allow-remote"},
		{func(c *Config) { c.URL = "http://10.0.0.8:8000" }, "--allow-remote"},
		{func(c *Config) { c.URL = "http://0.0.0.0:8000" }, "--allow-remote"},
		{func(c *Config) { c.URL = "http://localhost.example.com" }, "--allow-remote"},
		{func(c *Config) { c.URL = "http://localhost@example.com" }, "--allow-remote"},
		{func(c *Config) { c.URL = "127.0.0.1:8080" }, "url"},
		{func(c *Config) { c.URL = "ftp://127.0.0.1" }, "want http://"},
		{func(c *Config) { c.URL = "http://127.0.0.1:8080/v1/" }, "without /v1"},
		{func(c *Config) { c.Endpoint = "responses" }, "endpoint"},
		{func(c *Config) { c.Arrivals = "gamma" }, "arrivals"},
		{func(c *Config) { c.RPS = 0 }, "rps"},
		{func(c *Config) { c.Duration = 0 }, "duration"},
		{func(c *Config) { c.Duration = 25 * time.Hour }, "duration"},
		{func(c *Config) { c.RPS, c.Duration = 90_000, 20*time.Hour }, "arrivals"},
		{func(c *Config) { c.Limit = -1 }, "limit"},
		{func(c *Config) { c.MaxInFlight = 0 }, "max-in-flight"},
		{func(c *Config) { c.Timeout = 0 }, "timeout"},
		{func(c *Config) { c.Turns = 0 }, "turns"},
		{func(c *Config) { c.ThinkTime = -1 }, "think-time"},
		{func(c *Config) { c.SharedPrefixTokens = -1 }, "shared-prefix-tokens"},
		{func(c *Config) { c.WordsPerToken = -1 }, "words-per-token"},
		{func(c *Config) { c.SLO.TTFT = -1 }, "SLO"},
		{func(c *Config) { c.Stream, c.SLO.ITL = false, 1 }, "needs a stream"},
		{func(c *Config) { c.Trace, c.TimeScale = "t", 0 }, "time-scale"},
		{func(c *Config) { c.Trace, c.Turns = "t", 2 }, "turns"},
		{func(c *Config) { c.Trace, c.SharedPrefixTokens = "t", 2 }, "shared-prefix-tokens"},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q in it", err, c.want)
		}
	}
}

func TestValidate_Accepts(t *testing.T) {
	for _, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.URL = "http://localhost:1/" },
		func(c *Config) { c.URL = "https://[::1]:8443/base" },
		func(c *Config) { c.URL, c.AllowRemote = "http://10.0.0.8:8000", true },
		func(c *Config) { c.Trace, c.Duration, c.RPS = "t", 0, 0 },
		func(c *Config) { c.Stream, c.SLO.E2E = false, 1 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
