package replicas

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
)

// busyWith is what a replica reports that has one request on each of some servers.
func busyWith(replica string, partial bool, servers ...*pools.Server) []byte {
	m := workMessage{Replica: replica, Servers: make(map[string][2]sharedWork), partial: partial}
	for _, s := range servers {
		m.Servers[s.ID()] = [2]sharedWork{{Requests: 1, Tokens: 10}, {}}
	}
	return m.encode(nil)
}

// As many replicas are remembered as there can be, and those that are gone are none of them:
// where gateways come and go, the new ones are known.
func TestReplicas_ThoseThatAreGoneMakeRoomForOthers(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now, requests := time.Now(), func(now time.Time) int { return servers[0].InFlight(pools.Prefill, now).Requests }
	for round := range 3 {
		for i := range 256 {
			r.take(busyWith(fmt.Sprintf("r%d-%d", round, i), false, servers...), now)
		}
		if busy, n := r.Busy(now.Add(workExpiry)), requests(now.Add(workExpiry)); busy != 256 || n != 256 {
			t.Errorf("round %d: %d replicas are busy with %d requests, want 256", round, busy, n)
		}
		now = now.Add(workExpiry + time.Millisecond)
		if busy, n := r.Busy(now), requests(now); busy != 0 || n != 0 {
			t.Errorf("round %d: %d that are gone are busy with %d requests", round, busy, n)
		}
	}
	r.take(busyWith("last", false, servers...), now)
	if n := len(r.others); n != 1 || r.Busy(now) != 1 {
		t.Errorf("%d are remembered, want the last one", n)
	}
}

// What a replica had before it fell silent is over. When it is back and reports what has
// changed, that is all that is known of it.
func TestReplicas_OneThatIsBackHasNothingOfBefore(t *testing.T) {
	r, servers := quietReplica(t, "me", 2)
	now := time.Now()
	has := func() (on []int) {
		for _, s := range servers {
			on = append(on, s.InFlight(pools.Prefill, now).Requests)
		}
		return on
	}
	r.take(busyWith("a", false, servers[0]), now)
	now = now.Add(workExpiry)
	r.take(busyWith("a", true, servers[1]), now)
	if got := has(); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("what has changed, in time: %v", got)
	}
	now = now.Add(workExpiry + time.Millisecond)
	r.take(busyWith("a", true, servers[1]), now)
	if got := has(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("what has changed, after it was forgotten: %v", got)
	}
	r.take(busyWith("a", false), now)
	if n := len(r.others); n != 0 {
		t.Errorf("it has nothing: %d are remembered", n)
	}
}

// JSON of a replica that speaks MessagePack is for others, until it is gone: an earlier
// version that takes its place under the same id speaks nothing else.
func TestReplicas_AnEarlierVersionMayTakeThePlace(t *testing.T) {
	r, servers := quietReplica(t, "me", 1)
	now := time.Now()
	inJSON := []byte(`{"r":"a","s":{"` + servers[0].ID() + `":[{"n":7},{}]}}`)
	r.take(busyWith("a", false, servers[0]), now)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{workExpiry, 1}, {workExpiry + time.Millisecond, 7}} {
		at := now.Add(step.after)
		r.take(inJSON, at)
		if work := r.others["a"].servers[servers[0].ID()]; work.both[0].Requests != step.want {
			t.Errorf("%v after its last MessagePack it has %d requests, want %d", step.after, work.both[0].Requests, step.want)
		}
	}
}

// A replica that ends takes back all that it left in Redis and tells the others, who need not
// wait until it expires; what one left that was killed is struck out by the next that starts.
func TestReplicas_NothingIsLeftOfOneThatIsGone(t *testing.T) {
	server := redisserver.Start(t)
	c := server.Client()
	c.ZAdd(t.Context(), "test:"+replicaSet, redis.Z{Member: "killed"})
	a, b := newReplica(t, server, "a"), newReplica(t, server, "b")
	a.claim(t, 500)
	eventually(t, "b knows a", func() bool { return b.sees().Requests == 1 })
	eventually(t, "both are in the set, and none that is gone", func() bool {
		return slices.Equal(c.ZRange(t.Context(), "test:"+replicaSet, 0, -1).Val(), []string{"a", "b"})
	})
	a.stop()
	if keys, err := c.Exists(t.Context(), "test:"+workKey+"a").Result(); keys != 0 || err != nil {
		t.Errorf("it left its key: %d, %v", keys, err)
	}
	if set := c.ZRange(t.Context(), "test:"+replicaSet, 0, -1).Val(); !slices.Equal(set, []string{"b"}) {
		t.Errorf("in the set are %v", set)
	}
	eventually(t, "b remembers nobody", func() bool { // who expires is struck out by what others report, and there are none
		b.shared.mu.Lock()
		defer b.shared.mu.Unlock()
		return len(b.shared.others) == 0
	})
}
