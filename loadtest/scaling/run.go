package scaling

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// controlEvery is the time between two decisions: the HPA's default.
const controlEvery = 15 * time.Second

// longestTail is how many seconds after the load its last requests are waited for.
const longestTail = 1800.0

// Outcome is what a policy made of a load.
type Outcome struct {
	Scenario  string  `json:"scenario"`
	Policy    string  `json:"policy"`
	ColdStart float64 `json:"cold_start_s"`
	Seed      uint64  `json:"seed"`
	Requests  int     `json:"requests"`

	Good        float64 `json:"good_share"`      // in time and smooth
	Calm        float64 `json:"good_share_calm"` // of those that did not arrive in a burst
	Late        int     `json:"late"`            // first token after the objective
	Slow        int     `json:"slow"`            // tokens further apart than the objective
	Unended     int     `json:"unended"`         // half an hour after the load
	LongestWait float64 `json:"longest_wait_s"`  // until a first token

	PrefillHours float64 `json:"prefill_hours"` // of servers, those that start and drain included
	DecodeHours  float64 `json:"decode_hours"`
	PrefillWork  float64 `json:"prefill_work_hours"` // of servers kept busy without a pause
	DecodeWork   float64 `json:"decode_work_hours"`

	Recovery  *float64 `json:"recovery_s,omitempty"` // from the end of a burst, or a shift, until 95 % are good; nil without one
	Reversals float64  `json:"reversals_per_hour"`   // changes of direction, of the role that has more
	Lines     Lines    `json:"lines"`
}

// Hours are those of both roles.
func (o *Outcome) Hours() float64 { return o.PrefillHours + o.DecodeHours }

// Lines are an outcome over time, in steps of half a minute.
type Lines struct {
	PrefillWork  []float64 `json:"prefill_work"` // servers that the load keeps busy
	DecodeWork   []float64 `json:"decode_work"`
	PrefillPods  []float64 `json:"prefill_pods"` // those that start included
	DecodePods   []float64 `json:"decode_pods"`
	PrefillReady []float64 `json:"prefill_ready"`
	DecodeReady  []float64 `json:"decode_ready"`
	Good         []float64 `json:"good_share"` // by arrival; -1 where nothing arrived
}

// run lets a policy scale for a load.
func run(p *Policy, plant *runFacts, load []request) *Outcome {
	s := plant.scenario
	c := newCluster(s, p)
	bins := int(math.Ceil(s.Seconds / binSeconds))
	c.account = account{scenario: s, own: c.ownPrefill, binAll: make([]int, bins), binGood: make([]int, bins)}
	w := &watch{meanOutput: meanOutput(load)}
	c.account.watch = w
	c.prefill.scale(max(1, int(math.Ceil(plant.work.prefill[0]))+1), 0, 0)
	c.decode.scale(max(1, int(math.Ceil(plant.work.decode[0]))+1), 0, 0)
	ask := p.size(plant)
	prefill, decode := &hpa{behaviour: p.prefill}, &hpa{behaviour: p.decode}
	o := &Outcome{Policy: p.Name, Scenario: s.Name, ColdStart: plant.coldStart, Requests: len(load)}
	turns := [2]reversalCounter{}
	steps := func(every float64) int { return int(every / tick) }
	next := 0
	for step := 0; c.now < s.Seconds || c.account.all < len(load) && c.now < s.Seconds+longestTail; step++ {
		for ; next < len(load) && load[next].at < c.now+tick; next++ {
			c.arrive(&load[next])
			w.recordArrival(&load[next])
		}
		c.pass()
		w.kvNow += c.kv() * tick
		if c.now > s.Seconds {
			continue // the last requests end; nothing is scaled or paid for
		}
		if (step+1)%steps(sizing.Bin.Seconds()) == 0 {
			w.bin()
		}
		if (step+1)%steps(controlEvery.Seconds()) == 0 {
			v := c.view(w, plant.coldStart)
			askP, askD := ask(v)
			wantP := prefill.decide(c.now, v.prefillReady+v.prefillPending, askP)
			wantD := decode.decide(c.now, v.decodeReady+v.decodePending, askD)
			turns[0].record(wantP)
			turns[1].record(wantD)
			c.prefill.scale(wantP, c.now, plant.coldStart)
			c.decode.scale(wantD, c.now, plant.coldStart)
		}
		if (step+1)%steps(binSeconds) == 0 {
			o.Lines.add(c)
		}
		o.PrefillHours, o.DecodeHours = c.prefill.hours, c.decode.hours
	}
	o.conclude(&c.account, plant, turns)
	return o
}

func meanOutput(load []request) float64 {
	sum := 0.0
	for i := range load[:min(len(load), 100)] {
		sum += float64(load[i].output)
	}
	return sum / float64(max(1, min(len(load), 100)))
}

func (l *Lines) add(c *cluster) {
	ready, pending := c.prefill.counts(c.now)
	l.PrefillReady, l.PrefillPods = append(l.PrefillReady, float64(ready)), append(l.PrefillPods, float64(ready+pending))
	ready, pending = c.decode.counts(c.now)
	l.DecodeReady, l.DecodePods = append(l.DecodeReady, float64(ready)), append(l.DecodePods, float64(ready+pending))
}

// conclude draws the figures of the outcome from its parts.
func (o *Outcome) conclude(a *account, plant *runFacts, turns [2]reversalCounter) {
	s := plant.scenario
	o.Good, o.Calm = part(a.good, o.Requests), part(a.calmGood, a.calm)
	o.Late, o.Slow, o.LongestWait = a.late, a.slow, a.longestWait
	o.Unended = o.Requests - a.all
	for bin := range plant.work.prefill {
		o.PrefillWork += plant.work.prefill[bin] * binSeconds / 3600
		o.DecodeWork += plant.work.decode[bin] * binSeconds / 3600
	}
	o.Reversals = max(turns[0].reversals, turns[1].reversals) / (s.Seconds / 3600)
	if after := s.disturbed(); after > 0 {
		recovery := a.recovery(after)
		o.Recovery = &recovery
	}
	o.Lines.PrefillWork, o.Lines.DecodeWork = plant.work.prefill, plant.work.decode
	for bin, all := range a.binAll {
		share := -1.0
		if all > 0 {
			share = float64(a.binGood[bin]) / float64(all)
		}
		o.Lines.Good = append(o.Lines.Good, share)
	}
}

// reversalCounter counts how often a number changes direction.
type reversalCounter struct {
	last, direction int
	reversals       float64
}

func (t *reversalCounter) record(value int) {
	direction := t.direction
	if value != t.last && t.last != 0 {
		direction = 1
		if value < t.last {
			direction = -1
		}
	}
	if t.direction != 0 && direction != t.direction {
		t.reversals++
	}
	t.last, t.direction = value, direction
}

// String is an outcome in a few words.
func (o *Outcome) String() string {
	return fmt.Sprintf("%s %s, cold start %.0f s: %.1f %% good at %.1f h", o.Scenario, o.Policy, o.ColdStart, 100*o.Good, o.Hours())
}
