package access

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// receiving is a replica called me, with one key of 1,000 requests a minute and 50 at once.
func receiving(t *testing.T) (*usageReceiver, *Key) {
	t.Helper()
	s := NewQuotaSync(nil, "", "me", slog.New(slog.DiscardHandler))
	c := New(DefaultConfig(), s)
	reload(t, c, entry("k", "tenant: a", "requests-per-minute: 1000", "concurrent-requests: 50"))
	return &usageReceiver{sync: s, replicas: make(map[string]*replica)}, c.Find([]byte("k"))
}

// reports lets another replica report of a key.
func (r *usageReceiver) reports(t *testing.T, replica, epoch string, k *Key, u reportedUsage, now time.Time) {
	t.Helper()
	message, err := json.Marshal(usedMessage{Replica: replica, Epoch: epoch, Keys: map[string]reportedUsage{k.ID: u}})
	if err != nil {
		t.Fatal(err)
	}
	r.receive(message, now)
}

func used(requests, running, age float64) reportedUsage {
	return reportedUsage{usage: usage{Requests: requests}, Running: running, Age: age}
}

func TestUsageReceiver_ChargesEachReplicasUseOnce(t *testing.T) {
	r, k := receiving(t)
	now := r.sync.started.Add(time.Second)
	want := func(what string, left int, replicas int64) {
		t.Helper()
		if got := k.LimitStatuses(now)[OfRequests].Remaining; got != left || r.sync.replicas.Load() != replicas {
			t.Errorf("%s: %d are left and %d replicas are known; want %d and %d", what, got, r.sync.replicas.Load(), left, replicas)
		}
	}
	r.reports(t, "me", r.sync.epoch, k, used(100, 0, 0), now)
	r.reports(t, "me", r.sync.epoch, k, used(200, 0, 0), now)
	want("its own reports", 1000, 1)
	if len(r.replicas) != 0 {
		t.Error("it counts itself twice")
	}
	r.reports(t, "b", r.sync.epoch, k, used(100, 0, 60), now)
	want("what b let in long before its first report", 1000, 1)
	r.reports(t, "b", r.sync.epoch, k, used(130, 0, 60), now)
	want("30 more at b", 970, 2)
	r.reports(t, "b", r.sync.epoch, k, used(130, 0, 60), now)
	want("the same again", 970, 2)
	r.reports(t, "b", "restarted", k, used(5, 0, 0), now)
	want("5 since b was started again", 965, 2)
	r.reports(t, "me", "another", k, used(15, 0, 0), now)
	want("15 at another replica of its own name", 950, 2)
	r.reports(t, "b", "restarted", k, used(5, 0, 0), now)
	want("nothing new", 950, 3)
}

func TestUsageReceiver_AReplicaThatIsSilentIsForgotten(t *testing.T) {
	r, k := receiving(t)
	at := func(d time.Duration) time.Time { return r.sync.started.Add(time.Second + d) }
	running := func(now time.Time) int { // at other replicas, as far as it counts
		n := 0
		for ; n <= 50; n++ {
			if _, err := k.Admit(1, now); err != nil {
				break
			}
		}
		k.quota.running = 0
		return 50 - n
	}
	r.reports(t, "b", "", k, used(0, 20, 0), at(0))
	r.reports(t, "c", "", k, used(0, 7, 0), at(time.Second))
	if n := running(at(time.Second)); n != 27 {
		t.Errorf("%d run at b and c, want 27", n)
	}
	r.reports(t, "c", "", k, used(0, 7, 0), at(replicaTimeout)) // b is not late yet
	if n := r.sync.replicas.Load(); n != 3 || running(at(replicaTimeout-1)) != 27 {
		t.Errorf("%d replicas at b's time, want 3", n)
	}
	late := at(replicaTimeout + 1)
	r.reports(t, "c", "", k, used(0, 7, 0), late)
	if n := running(late); n != 7 || len(k.quota.others) != 1 {
		t.Errorf("%d run, at %d others; want the 7 of c", n, len(k.quota.others))
	}
	if n := r.sync.replicas.Load(); n != 2 || len(r.replicas) != 1 {
		t.Errorf("%d replicas, %d others are kept; want c and itself", n, len(r.replicas))
	}
	r.reports(t, "c", "", k, used(0, 0, 0), late)
	if n := running(late); n != 0 || len(k.quota.others) != 0 {
		t.Errorf("with nothing in flight at c %d run, at %d others", n, len(k.quota.others))
	}
}

// A limit is this replica's alone only while it receives nothing, from the third second on.
func TestUsageReceiver_TheShareFollowsTheLastMessage(t *testing.T) {
	r, k := receiving(t)
	if share := r.sync.share(r.sync.started.Add(time.Hour)); share != 1 {
		t.Errorf("where no message ever came the share is %v", share)
	}
	last := r.sync.started.Add(time.Second)
	for range 2 {
		r.reports(t, "b", "", k, used(0, 0, 0), last)
	}
	for after, want := range map[time.Duration]float64{0: 1, replicaTimeout: 1, replicaTimeout + 1: 0.5} {
		if share := r.sync.share(last.Add(after)); share != want {
			t.Errorf("%v after the last message the share is %v, want %v", after, share, want)
		}
	}
}

// Others may write to this Redis: what is longer, or of more replicas, than any that Tandem
// writes is ignored, and changes nothing for those that are known.
func TestUsageReceiver_BoundsWhatItReads(t *testing.T) {
	r, k := receiving(t)
	now := r.sync.started.Add(time.Second)
	ignored := func(what string, want uint64) {
		t.Helper()
		if got := r.sync.ignored.Swap(0); got != want {
			t.Errorf("%s: %d messages ignored, want %d", what, got, want)
		}
	}
	padded := func(n int) []byte {
		message := `{"r":"b"}`
		return []byte(message + strings.Repeat(" ", n-len(message)))
	}
	r.receive(padded(maxMessage), now)
	ignored("the longest message", 0)
	r.receive(padded(maxMessage+1), now)
	ignored("a longer one", 1)
	r.reports(t, strings.Repeat("x", 128), "", k, used(0, 0, 0), now)
	ignored("the longest name", 0)
	r.reports(t, strings.Repeat("x", 129), "", k, used(0, 0, 0), now)
	ignored("a longer one", 1)
	for i := len(r.replicas); i < maxReplicas; i++ {
		r.reports(t, fmt.Sprint("r", i), "", k, used(0, 0, 0), now)
	}
	ignored("as many replicas as count", 0)
	r.reports(t, "another", "", k, used(5, 0, 0), now)
	ignored("one more", 1)
	r.reports(t, "b", "restarted", k, used(3, 0, 0), now)
	ignored("one of them, started again", 0)
	if left := k.LimitStatuses(now)[OfRequests].Remaining; left != 997 || len(r.replicas) != maxReplicas {
		t.Errorf("%d are left, %d replicas are kept", left, len(r.replicas))
	}
}
