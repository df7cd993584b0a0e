package access

import (
	"strings"
	"testing"
	"time"
)

func TestConfig_ValidateNamesWhatIsWrong(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*Config)
		want   string // in the error, "" for none
	}{
		"the default":                     {func(*Config) {}, ""},
		"a name of 64 bytes":              {func(c *Config) { c.Classes[0] = strings.Repeat("x", 64) }, ""},
		"a name of 65 bytes":              {func(c *Config) { c.Classes[0] = strings.Repeat("x", 65) }, "64 bytes"},
		"a class without a name":          {func(c *Config) { c.Classes[2] = "" }, "64 bytes"},
		"a class twice":                   {func(c *Config) { c.Classes[2] = c.Classes[0] }, "each once"},
		"a default that is no class":      {func(c *Config) { c.Class = "royal" }, `"royal" is none of the classes`},
		"a default and no classes at all": {func(c *Config) { c.Classes = nil }, `"standard" is none of the classes`},
		"a deadline":                      {func(c *Config) { c.Deadline = time.Second }, ""},
		"a deadline that has passed":      {func(c *Config) { c.Deadline = -1 }, "deadline"},
		"one answer a request":            {func(c *Config) { c.MaxSamples = 1 }, ""},
		"no answer":                       {func(c *Config) { c.MaxSamples = 0 }, "max-samples"},
	} {
		c := DefaultConfig()
		x.change(&c)
		err := c.Validate()
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
