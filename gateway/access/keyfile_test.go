package access

import (
	"errors"
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

// A caller that knows which names are harmless to print can say which field is mistyped; the error's own text never does.
func TestReadKeys_AnUnknownFieldIsToldApart(t *testing.T) {
	for name, x := range map[string]struct {
		content, field string
		line           int
	}{
		"of a key":         {"keys:\n" + entry("k", "tenant: a", "request-per-minute: 3"), "request-per-minute", 5},
		"of the file":      {"keyz:\n" + entry("k", "tenant: a"), "keyz", 2},
		"a key in a place": {"keys:\n" + entry("k", "sk-very-private: a"), "sk-very-private", 4},
	} {
		_, err := ReadKeys([]byte(testSecret+x.content), DefaultConfig())
		var unknown *UnknownFieldError
		if !errors.As(err, &unknown) || unknown.Field != x.field || unknown.Line != x.line || strings.Contains(err.Error(), x.field) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if known := strings.Join(unknown.Known, " "); !strings.HasPrefix(known, "secret keys sha256 tenant ") || !strings.Contains(known, "requests-per-minute") {
			t.Errorf("%s: there are %s", name, known)
		}
	}
}
