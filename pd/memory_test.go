package pd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/queue"
)

func TestQueueConfig_ValidateRefusesWhatMakesNoSense(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*queue.Config)
		valid  bool
	}{
		"the default":   {func(*queue.Config) {}, true},
		"none may wait": {func(c *queue.Config) { c.MaxWaiting = 0 }, true},
		"one at a time": {func(c *queue.Config) { c.MaxInFlight, c.MaxBytes, c.MaxWait = 1, 1, 1 }, true},
		"none at all":   {func(c *queue.Config) { c.MaxInFlight = 0 }, false},
		"fewer":         {func(c *queue.Config) { c.MaxWaiting = -1 }, false},
		"no bytes":      {func(c *queue.Config) { c.MaxBytes = 0 }, false},
		"no time":       {func(c *queue.Config) { c.MaxWait = 0 }, false},
	} {
		cfg := queue.Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What others write into the channel and cannot be read asks for nothing.
func TestTokenSync_WhatCannotBeReadIsIgnored(t *testing.T) {
	var asked []string
	l := NewLocality(nil, func(model string) (*tokens.Source, error) {
		asked = append(asked, model)
		return nil, fmt.Errorf("none")
	})
	defer l.Close()
	s := NewTokenSync(l, nil, "test:", nil)
	name := strings.Repeat("m", 256)
	for _, message := range []string{
		"", "\x00prefix", "\x05four", "\xff", "\x80\x02" + name, "\x01" + "m" + strings.Repeat("x", maxLearnedPrefix+300),
	} {
		s.take([]byte(message))
	}
	if l.openings.Wait(); len(asked) != 0 {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
	s.take([]byte("\x01mprefix"))
	s.take(append([]byte{0xff, 0x01}, name[:255]...))
	if l.openings.Wait(); len(asked) != 2 || asked[0] != "m" || asked[1] != name[:255] {
		t.Errorf("asked for the tokens of %.40q", asked)
	}
}
