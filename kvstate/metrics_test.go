package kvstate

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

func TestCollector(t *testing.T) {
	ix, s := opened(t, Spec{SourceID: SourceID{Server: "s", Rank: 1}})
	s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1,
		wireEvent{kind: "BlockStored", hashes: []uint64{1, 2, 3, 4}, tokens: count(0, 64), size: 16, medium: "GPU"},
		wireEvent{kind: "BlockStored", hashes: []uint64{3}, size: 16, medium: "CPU"},
		wireEvent{kind: "BlockRemoved", hashes: []uint64{3, 99}, medium: "GPU"},
		wireEvent{kind: "BlockEaten"})})
	s.ApplyLive(Message{Seq: 5, Payload: []byte{0xc1}})
	s.ApplyLive(Message{Seq: 6, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"})})
	var h Hits
	ix.Match(&Prompt{Model: "m", Tokens: count(0, 100)}, &h)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(ix.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&all, family); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		`tandem_kv_best_match_tokens_total{model="m",tier="cpu"} 32`,
		`tandem_kv_best_match_tokens_total{model="m",tier="gpu"} 32`,
		`tandem_kv_blocks{rank="1",server="s",tier="gpu"} 2`,
		`tandem_kv_blocks{rank="1",server="s",tier="cpu"} 0`,
		`tandem_kv_blocks_stored_total{rank="1",server="s"} 7`,
		`tandem_kv_events_dropped_total{rank="1",server="s"} 3`,
		`tandem_kv_gaps_total{rank="1",server="s"} 1`,
		`tandem_kv_index_blocks{model="m",tier="gpu"} 2`,
		`tandem_kv_lookups_total{model="m"} 1`,
		`tandem_kv_known_tokens_total{model="m"} 100`,
		`tandem_kv_resets_total{rank="1",server="s"} 2`,
	} {
		if !strings.Contains(all.String(), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	counts := ix.Sources()[0].Counts
	if why := counts.DropReasons(); !maps.Equal(why, map[string]uint64{"removal": 1, "unknown": 1, "unreadable": 1}) {
		t.Errorf("left out %v", why)
	}
	if why := counts.ResetReasons(); !maps.Equal(why, map[string]uint64{"gap": 1, "unreadable": 1}) {
		t.Errorf("forgotten %v", why)
	}
	if t.Failed() {
		t.Log(all.String())
	}
}

// How late a batch was is told where the engine's clock and ours agree that it may be so, and not else; a replayed one
// was not late.
func TestCollector_LagWhereItIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		at       float64 // of the batch, by the engine's clock
		replayed bool
		want     int // series
	}{
		"now":                         {float64(time.Now().Unix()), false, 1},
		"by a clock that starts at 0": {1, false, 0},
		"a minute ago, replayed":      {float64(time.Now().Unix() - 60), true, 0},
	} {
		ix, s := opened(t, Spec{})
		apply := func(m Message) { s.ApplyLive(m) }
		if c.replayed {
			s.BeginReplay(ReplayRequest{Start, 0})
			apply = s.ApplyReplayed
		}
		apply(Message{Payload: wireBatch(wireForm{}, c.at, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16, medium: "GPU"})})
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(ix.Collector())
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series := 0
		for _, family := range families {
			if strings.Contains(family.GetName(), "lag") {
				series += len(family.GetMetric())
			}
		}
		if series != c.want {
			t.Errorf("%s: %d series", name, series)
		}
	}
}
