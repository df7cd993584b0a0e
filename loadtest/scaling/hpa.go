package scaling

import (
	"math"
	"slices"
)

// behaviour is how Kubernetes' HPA turns asks into replicas. Times are in seconds.
type behaviour struct {
	tolerance            float64 // a change of less than this share is none
	upPods               int     // most pods added in upPeriod
	upShare              float64 // or this share of those there, if it is more
	upPeriod             float64
	downPods             int // most pods removed in downPeriod; 0: any number
	downPeriod           float64
	upWindow, downWindow float64 // the least, the greatest ask of the window counts
}

// hpaDefault is what an HPA without `behavior` does (k8s.io/kubernetes v1.36
// pkg/apis/autoscaling/v2/defaults.go).
var hpaDefault = behaviour{tolerance: 0.1, upPods: 4, upShare: 1, upPeriod: 15, downWindow: 300}

// exactBehaviour does what is asked, at once and exactly: the size function has smoothed it.
var exactBehaviour = behaviour{upPods: 1000, upPeriod: 15}

// hpa is one HorizontalPodAutoscaler.
type hpa struct {
	behaviour
	requests, changes []stamped
}

type stamped struct {
	at    float64
	value int
}

// decide returns the replicas that follow from an ask, a fraction of replicas.
// Source of the steps: replica_calculator.go and horizontal.go of the HPA
// controller: tolerance, round up, stabilise, limit the rate.
func (h *hpa) decide(now float64, replicas int, ask float64) int {
	want := int(math.Ceil(ask - 1e-9))
	if ratio := ask / float64(max(replicas, 1)); ratio >= 1-h.tolerance && ratio <= 1+h.tolerance {
		want = replicas
	}
	want = max(1, min(want, maxReplicas))
	want = h.stable(now, replicas, want)
	switch {
	case want > replicas:
		before := replicas - h.changed(now, h.upPeriod, 1)
		want = min(want, max(replicas, before+max(h.upPods, int(math.Ceil(h.upShare*float64(before))))))
	case want < replicas && h.downPods > 0:
		before := replicas + h.changed(now, h.downPeriod, -1)
		want = max(want, min(replicas, before-h.downPods))
	}
	if want != replicas {
		h.changes = append(h.changes, stamped{now, want - replicas})
	}
	return want
}

// maxReplicas bounds every policy: over twice what the heaviest load needs.
const maxReplicas = 40

// stable returns the ask within the least and the greatest of the windows.
func (h *hpa) stable(now float64, replicas, want int) int {
	h.requests = append(h.requests, stamped{now, want})
	h.requests = slices.DeleteFunc(h.requests, func(a stamped) bool { return a.at <= now-max(h.upWindow, h.downWindow) && a.at != now })
	up, down := want, want
	for _, a := range h.requests {
		if a.at > now-h.upWindow {
			up = min(up, a.value)
		}
		if a.at > now-h.downWindow {
			down = max(down, a.value)
		}
	}
	return min(max(replicas, up), down)
}

// changed is how many pods were added (sign 1) or removed (-1) in the last period.
func (h *hpa) changed(now, period float64, sign int) int {
	sum := 0
	for _, c := range h.changes {
		if c.at > now-period && c.value*sign > 0 {
			sum += c.value * sign
		}
	}
	return sum
}
