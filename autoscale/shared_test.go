package autoscale

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// A replica reports no more. Its requests are believed to wait for a while, what it was
// asked counts for as long as its bins do, and then nothing of it is left, nor in Redis.
func TestShared_ForgetsAReplicaThatIsGone(t *testing.T) {
	r, c := redisserver.Start(t), newClock()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	gone, left := demand.NewMeter(c.Now), demand.NewMeter(c.Now)
	gone.Queued = func() map[string]int { return map[string]int{model: 1} }
	gone.RecordArrival(demand.Arrival{Model: model, PromptTokens: 1000})
	c.pass(sizing.Bin)
	if _, err := NewShared(client, "test:", "gone").exchangeDemand(t.Context(), gone.Read()); err != nil {
		t.Fatal(err)
	}
	const counts = demand.KeptBins * sizing.Bin
	for _, of := range []struct {
		after             time.Duration
		replicas, waiting int
		demand            bool
	}{
		{goneAfter, 2, 1, true},
		{goneAfter + time.Second, 2, 0, true},
		{counts - sizing.Bin, 2, 0, true}, // the bin in which it was asked was over then
		{counts, 2, 0, false},
		{counts + time.Second, 1, 0, false},
	} {
		now := &clock{c.Now().Add(of.after)}
		left.Now = now.Now
		readings, err := NewShared(client, "test:", "left").exchangeDemand(t.Context(), left.Read())
		if err != nil {
			t.Fatal(err)
		}
		bin := demand.BinOf(now.Now())
		all := demand.Sum(readings, model, bin-demand.KeptBins, bin)
		if len(readings) != of.replicas || all.Waiting.Requests != of.waiting || all.Queued != of.waiting || (all.Prompt.Mean() > 0) != of.demand {
			t.Errorf("after %v: %d replicas, %d wait, %d in queues, demand %v; want %d, %d, demand: %v", of.after, len(readings), all.Waiting.Requests, all.Queued, all.Prompt.Mean(), of.replicas, of.waiting, of.demand)
		}
		if n := client.HLen(t.Context(), "test:"+demandKey).Val(); int(n) != of.replicas {
			t.Errorf("after %v: %d replicas in Redis, want %d", of.after, n, of.replicas)
		}
	}
}
