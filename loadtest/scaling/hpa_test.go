package scaling

import "testing"

// The figures are those that a real HPA gave for the same asks (KEDA 2.21, Kubernetes
// 1.36): within 10 % of what is there it does nothing, and it adds at most four pods
// or as many as there are in 15 s.
func TestHPA_DefaultBehaviour(t *testing.T) {
	for _, c := range []struct {
		replicas, want int
		ask            float64
	}{
		{10, 10, 11}, {10, 12, 12}, {12, 12, 11}, {3, 7, 12}, {6, 12, 30}, {10, 10, 10.9},
	} {
		h := &hpa{behaviour: hpaDefault}
		if got := h.decide(0, c.replicas, c.ask); got != c.want {
			t.Errorf("%d replicas, asked for %g: %d, want %d", c.replicas, c.ask, got, c.want)
		}
	}
}

func TestHPA_ExactWithoutTolerance(t *testing.T) {
	h := &hpa{behaviour: exactBehaviour}
	replicas := 10
	for i, ask := range []float64{11, 10, 25, 1} {
		if replicas = h.decide(float64(15*i), replicas, ask); replicas != int(ask) {
			t.Errorf("asked for %g, got %d", ask, replicas)
		}
	}
}

func TestHPA_DownWindowKeepsTheGreatestAsk(t *testing.T) {
	h := &hpa{behaviour: hpaDefault}
	replicas := 10
	for now := 0.0; now < 600; now += 15 {
		ask := 2.0
		if now == 0 {
			ask = 10
		}
		replicas = h.decide(now, replicas, ask)
		if want := map[bool]int{true: 10, false: 2}[now < 300]; replicas != want {
			t.Fatalf("after %.0f s %d replicas, want %d", now, replicas, want)
		}
	}
}

func TestHPA_OnePodInThreeMinutes(t *testing.T) {
	h := &hpa{behaviour: tokenAware}
	replicas := 2
	for now := 0.0; now < 540; now += 15 {
		replicas = h.decide(now, replicas, 20)
		if want := 3 + int(now/180); replicas != want {
			t.Fatalf("after %.0f s %d replicas, want %d", now, replicas, want)
		}
	}
}
