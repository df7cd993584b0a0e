package policy

import (
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// shareUpdater says which hardware prefills requests of which lengths, by the gateway's own
// code: its meter of what is asked for, and the programme that shares it out.
type shareUpdater struct {
	meter    *demand.Meter
	variants []mix.Variant
	slo      SLO
	records  map[*job]*demand.RequestRecord
	now      float64
	next     float64 // when it plans again
}

// shareEvery is the time between two plans, in seconds.
const shareEvery = float64(sizing.DefaultInterval) / float64(time.Second)

func newShareUpdater(s *Scenario) *shareUpdater {
	r := &shareUpdater{records: make(map[*job]*demand.RequestRecord), slo: s.SLO}
	r.meter = demand.NewMeter(func() time.Time { return clockTime(r.now) })
	for _, v := range s.Variants {
		h := s.prefillHardware(v.Prefill[0])
		r.variants = append(r.variants, mix.Variant{Name: v.Name, Cost: 1, GPUs: 1, Prefill: len(v.Prefill), Capacity: sizing.Capacity{
			Schema: 1, Prefill: prefillCurve(h, 1), Step: curve.Curve{h.DecodeBase, h.DecodePerSequence, 1e6 * h.DecodePerContext}, KVTokens: h.DecodeCapacity,
		}})
	}
	return r
}

func (r *shareUpdater) recordArrival(v *View, j *job) {
	r.now = v.now
	r.records[j] = r.meter.RecordArrival(demand.Arrival{Fingerprint: uint64(j.id), PromptTokens: j.req.Prompt, OutputTokens: v.Output()})
}

func (r *shareUpdater) recordPrefilled(v *View, j *job) {
	r.now = v.now
	r.records[j].RecordFirstToken(j.req.Prompt, j.req.Prompt-j.estimate.cached)
	delete(r.records, j)
}

// plan shares out anew when it is time.
func (r *shareUpdater) plan(v *View, f *cost.Candidates) {
	if v.now < r.next {
		return
	}
	r.now, r.next = v.now, v.now+shareEvery
	traffic := r.meter.Traffic("")
	f.Shares = mix.Shares(r.variants, &traffic, runDuration(r.slo.TTFT))
	for p := range f.Prefill {
		f.Prefill[p].Kind = f.Shares.Column(v.scenario().variant(p).Name) + 1
	}
}
