package access

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// A key without a deadline of its own lets its requests set any, and sets none; a header that
// cannot be read is an error that names it, where it counts.
func TestPolicy_WithoutADeadlineAndWithHeadersThatCannotBeRead(t *testing.T) {
	c := open(t, entry("plain", "tenant: a"), entry("trusted", "tenant: a", "may-set: [priority, objectives, deadline]"))
	day := "86400000"
	for _, x := range []struct {
		key       string
		requested RequestedPolicy
		deadline  time.Duration // 0: none
		refused   string        // the header
	}{
		{"plain", RequestedPolicy{}, 0, ""},
		{"plain", RequestedPolicy{Deadline: "1"}, time.Millisecond, ""},
		{"plain", RequestedPolicy{Deadline: day}, 24 * time.Hour, ""},
		{"plain", RequestedPolicy{Deadline: "86400001"}, 0, DeadlineHeader},
		{"plain", RequestedPolicy{TTFT: "soon", ITL: "soon"}, 0, ""}, // ignored
		{"trusted", RequestedPolicy{TTFT: day, ITL: "1"}, 0, ""},
		{"trusted", RequestedPolicy{TTFT: "0"}, 0, TTFTHeader},
		{"trusted", RequestedPolicy{ITL: "soon"}, 0, ITLHeader},
		{"trusted", RequestedPolicy{Priority: "royal"}, 0, PriorityHeader},
	} {
		got, err := c.PolicyFor(c.Find([]byte(x.key)), x.requested, testTime)
		var unread *HeaderError
		if x.refused != "" {
			if !errors.As(err, &unread) || unread.Header != x.refused || got != (Policy{}) {
				t.Errorf("%s, %+v: %+v, %v; want %s refused", x.key, x.requested, got, err, x.refused)
			}
			continue
		}
		want := time.Time{}
		if x.deadline > 0 {
			want = testTime.Add(x.deadline)
		}
		if err != nil || got.Deadline != want {
			t.Errorf("%s, %+v: %+v, %v; want the deadline %v", x.key, x.requested, got, err, want)
		}
	}
}

// The priority of an InferenceObjective counts from the default class: one step up is the class
// before it, and what is beyond the classes is the first or the last. More than the key's class
// needs leave; the class that the request names goes before its objective.
func TestPolicy_LevelsAreClassesAroundTheDefault(t *testing.T) {
	c := open(t, entry("plain", "tenant: a"), entry("low", "tenant: a", "class: batch"), entry("trusted", "tenant: a", "may-set: [priority]"))
	for _, x := range []struct {
		key      string
		level    int
		priority string
		class    int
	}{
		{"plain", 0, "", 1}, {"plain", -1, "", 2}, {"plain", math.MinInt32, "", 2}, {"plain", 1, "", 1}, {"plain", math.MaxInt32, "", 1},
		{"low", 0, "", 2},
		{"trusted", 1, "", 0}, {"trusted", 10, "", 0}, {"trusted", math.MaxInt32, "", 0}, {"trusted", 0, "", 1}, {"trusted", math.MinInt32, "", 2},
		{"trusted", 10, "batch", 2}, {"plain", -10, "standard", 1},
	} {
		got, err := c.PolicyFor(c.Find([]byte(x.key)), RequestedPolicy{Level: &x.level, Priority: x.priority}, testTime)
		if err != nil || got.Class != x.class {
			t.Errorf("level %d and %q of a %s key: class %d, %v; want %d", x.level, x.priority, x.key, got.Class, err, x.class)
		}
	}
}

// Only who may name tenants does: the name is of bounded length, and without one the key's counts.
func TestPolicy_TenantsAreNamedByThoseWhoMay(t *testing.T) {
	c := open(t, entry("plain", "tenant: a"), entry("gateway", "tenant: a", "may-set: [tenant]"))
	long := strings.Repeat("x", maxTenant)
	for _, x := range []struct {
		key, fairness, tenant string
	}{{"plain", "b", "a"}, {"plain", long + "x", "a"}, {"gateway", "b", "b"}, {"gateway", "", "a"}, {"gateway", long, long}} {
		if got, err := c.PolicyFor(c.Find([]byte(x.key)), RequestedPolicy{Fairness: x.fairness}, testTime); err != nil || got.Tenant != x.tenant {
			t.Errorf("%s names %.20q: %.20q, %v; want %.20q", x.key, x.fairness, got.Tenant, err, x.tenant)
		}
	}
	var unread *HeaderError
	if _, err := c.PolicyFor(c.Find([]byte("gateway")), RequestedPolicy{Fairness: long + "x"}, testTime); !errors.As(err, &unread) || unread.Header != FairnessHeader {
		t.Errorf("a name too long: %v", err)
	}
	for trusted, tenant := range map[bool]string{false: "", true: "b"} {
		cfg := DefaultConfig()
		cfg.TrustHeaders = trusted
		keyless := New(cfg, nil)
		if got, err := keyless.PolicyFor(keyless.Find(nil), RequestedPolicy{Fairness: "b"}, testTime); err != nil || got.Tenant != tenant {
			t.Errorf("without keys, headers trusted %v: %q, %v; want %q", trusted, got.Tenant, err, tenant)
		}
	}
}
