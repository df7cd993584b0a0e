package order

import "testing"

func TestObjective_AutoIsThroughputWhereAFirstTokenIsDue(t *testing.T) {
	for _, x := range []struct {
		objective Objective
		ttft      float64
		want      Objective
	}{
		{Auto, 5, Throughput}, {Auto, 0, Latency},
		{"", 5, Throughput}, {"", 0, Latency},
		{Latency, 5, Latency}, {Throughput, 0, Throughput},
	} {
		if got := x.objective.Of(x.ttft); got != x.want {
			t.Errorf("%q with %v s is %s, want %s", x.objective, x.ttft, got, x.want)
		}
	}
}

func TestObjective_Validate(t *testing.T) {
	for objective, want := range map[Objective]bool{Auto: true, Latency: true, Throughput: true, "fast": false} {
		if err := objective.Validate(); (err == nil) != want {
			t.Errorf("%q: %v", objective, err)
		}
	}
}
