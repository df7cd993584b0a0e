package access

import (
	"errors"
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
