package pools

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// What a gateway of another version, or an operator by hand, left in the hash of those who
// use servers must not end every round of the manager's.
func TestTurns_AMalformedWordOfUseIsDropped(t *testing.T) {
	_, client := newTestRedis(t)
	ctx := t.Context()
	used := "test:" + usedKey
	client.HSet(ctx, used, "stranger", "garbage", "other", "99999999999999 a:1 b:1")

	fleet := NewFleet(Default(), nil, slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	turns := NewTurns(fleet, client, "test:", "me", slog.New(slog.DiscardHandler))
	eventually(t, "it manages", func() bool {
		turns.takeRound(ctx, nil)
		return turns.Manages()
	})
	if turns.othersDone("a:1", time.Time{}) || !turns.othersDone("c:1", time.Time{}) {
		t.Error("what the other uses was not heard")
	}
	if left := client.HKeys(ctx, used).Val(); len(left) != 1 || left[0] != "other" {
		t.Errorf("left in Redis: %v", left)
	}
}

// A round that a busy machine or Redis does not answer in time costs nothing. Once Redis has
// been silent for long, who does not manage knows that there is nobody to ask.
func TestTurns_OneMissedRoundIsNoLossOfRedis(t *testing.T) {
	_, client := newTestRedis(t)
	client.Set(t.Context(), "test:"+turnsKey, "another", 0)
	fleet := NewFleet(Default(), nil, slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	turns := NewTurns(fleet, client, "test:", "me", slog.New(slog.DiscardHandler))
	eventually(t, "it is heard", func() bool {
		turns.takeRound(t.Context(), nil)
		return turns.want("a:1") == nil
	})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	turns.takeRound(late, nil)
	if err := turns.want("a:1"); err != nil {
		t.Errorf("after one round that was missed: %v", err)
	}
	eventually(t, "Redis is given up", func() bool {
		turns.takeRound(late, nil)
		return turns.want("a:1") != nil
	})
}
