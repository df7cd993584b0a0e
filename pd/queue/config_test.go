package queue

import "testing"

func TestConfig_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		valid  bool
	}{
		"the default":   {func(*Config) {}, true},
		"none may wait": {func(c *Config) { c.MaxWaiting = 0 }, true},
		"one at a time": {func(c *Config) { c.MaxInFlight, c.MaxBytes, c.MaxWait = 1, 1, 1 }, true},
		"none at all":   {func(c *Config) { c.MaxInFlight = 0 }, false},
		"fewer":         {func(c *Config) { c.MaxWaiting = -1 }, false},
		"no bytes":      {func(c *Config) { c.MaxBytes = 0 }, false},
		"no time":       {func(c *Config) { c.MaxWait = 0 }, false},
	} {
		cfg := Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
