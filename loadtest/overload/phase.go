package overload

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
)

// Phase is what one rate of requests met.
type Phase struct {
	Name    string        `json:"name"`
	Rate    float64       `json:"rate"` // requests per second
	Length  time.Duration `json:"length_ns"`
	Arrived int           `json:"arrived"`
	// Asked and Good are those per second that came, and were answered within the SLO, once
	// the phase had lasted as long as the SLO: what fills the queue before that is answered
	// within the SLO too, but only once.
	Asked   float64 `json:"asked_per_second"`
	Good    float64 `json:"good_per_second"`
	Refused int     `json:"refused"` // 429 or 503
	Failed  int     `json:"failed"`  // otherwise

	TTFT99    time.Duration `json:"ttft_p99_ns"`    // of what was answered
	Refusal99 time.Duration `json:"refusal_p99_ns"` // until a refusal was read
	// Late is those that arrived once settled time had passed and were not answered within
	// the SLO; Late99 is the TTFT of the others of that time.
	Late   int           `json:"late"`
	Late99 time.Duration `json:"late_ttft_p99_ns"`
	// All99 is the TTFT of all that arrived; 0 where one in a hundred was not answered.
	All99 time.Duration `json:"all_ttft_p99_ns"`

	MB     float64 `json:"mb"`     // resident memory of the gateway, mean of the last third
	Growth float64 `json:"growth"` // of memory per minute, 0..1, from the second third to the last
}

// phase collects what ends.
type phase struct {
	Phase
	slo time.Duration

	mu       sync.Mutex // guards the rest, and Phase
	asked    int
	good     int
	ttfts    []time.Duration
	late     []time.Duration
	refusals []time.Duration
}

func newPhase(name string, rate float64, length, slo time.Duration) *phase {
	return &phase{Phase: Phase{Name: name, Rate: rate, Length: length}, slo: slo}
}

func (p *phase) ended(e loadtest.Ended) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Arrived++
	inTime := e.Kind == loadtest.OK && e.TTFT <= p.slo
	switch e.Kind {
	case loadtest.OK:
		p.ttfts = append(p.ttfts, e.TTFT)
	case "http_429", "http_503":
		p.Refused++
		p.refusals = append(p.refusals, e.Took)
	default:
		p.Failed++
	}
	if e.Due >= p.slo {
		p.asked++
		if inTime {
			p.good++
		}
	}
	if e.Due < settled {
		return
	}
	if inTime {
		p.late = append(p.late, e.TTFT)
	} else {
		p.Late++
	}
}

func (p *phase) result(memory []float64) Phase {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.Phase
	judged := (p.Length - p.slo).Seconds()
	out.Asked, out.Good = float64(p.asked)/judged, float64(p.good)/judged
	out.TTFT99, out.Refusal99, out.Late99 = p99(p.ttfts), p99(p.refusals), p99(p.late)
	if unanswered := p.Arrived - len(p.ttfts); 100*unanswered < p.Arrived {
		out.All99 = p.ttfts[99*p.Arrived/100]
	}
	third := len(memory) / 3
	out.MB = mean(memory[2*third:])
	if second := mean(memory[third : 2*third]); second > 0 {
		out.Growth = (out.MB/second - 1) / (p.Length / 3).Minutes()
	}
	return out
}

func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}
