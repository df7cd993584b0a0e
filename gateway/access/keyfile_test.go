package access

import (
	"strings"
	"testing"
	"time"
)

// What an entry leaves out is as configured, and what it names is not.
func TestReadKeys_DefaultsAndBounds(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Deadline = time.Minute
	read := func(lines ...string) (*Key, error) {
		keys, err := ReadKeys([]byte(testSecret+"keys:\n"+entry("k", lines...)), cfg)
		if err != nil {
			return nil, err
		}
		return keys.find([]byte("k")), nil
	}
	plain, err := read("tenant: a")
	if err != nil || plain.MaxSamples != cfg.MaxSamples || plain.MaxOutput != 0 || plain.Deadline != time.Minute || plain.MaySet != (MaySet{}) || plain.HasLimits() {
		t.Errorf("of defaults: %+v, %v", plain, err)
	}
	own, err := read("tenant: a", "max-samples: 1", "max-output-tokens: 7", "deadline: 1ns", "may-set: [objectives]", "output-tokens-per-minute: 1")
	if err != nil || own.MaxSamples != 1 || own.MaxOutput != 7 || own.Deadline != 1 || own.MaySet != (MaySet{Objectives: true}) || !own.HasLimits() {
		t.Errorf("of its own: %+v, %v", own, err)
	}
	for name, may := range map[string]bool{"two words": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, `"a\tb"`: false} {
		if _, err := read("tenant: " + name); (err == nil) != may {
			t.Errorf("tenant %s: %v", name, err)
		}
	}
	spans, err := read("tenant: a", "deadline: 1m30s", "ttft-slo: 0", "itl-slo:")
	if err != nil || spans.Deadline != 90*time.Second || spans.TTFT != 0 || spans.ITL != 0 {
		t.Errorf("times: %+v, %v", spans, err)
	}
	short := "  - sha256: abcd\n    tenant: a\n"
	if _, err := ReadKeys([]byte(testSecret+"keys:\n"+short), cfg); err == nil || !strings.Contains(err.Error(), "key 1: sha256") {
		t.Errorf("a hash of two bytes: %v", err)
	}
}
