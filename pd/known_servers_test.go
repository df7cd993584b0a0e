package pd

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// seen is what a choice reads of a snapshot's servers.
type seen struct {
	prefill, decode           []cost.Candidate
	prefillFacts, decodeFacts []serverFacts
	servers                   [4][]string
	prefillPanic, decodePanic bool
}

func seenIn(v *snapshot) (s seen) {
	s = seen{
		prefill: v.candidates.Prefill, decode: v.candidates.Decode, prefillFacts: v.prefillFacts, decodeFacts: v.decodeFacts,
		prefillPanic: v.prefillPanic, decodePanic: v.decodePanic,
	}
	for i, servers := range [...][]*pools.Server{v.prefill, v.decode, v.usablePrefill, v.usableDecode} {
		for _, server := range servers {
			s.servers[i] = append(s.servers[i], server.ID())
		}
	}
	return s
}

// othersWork is what other gateways have on each server: so many requests.
type othersWork int

func (w othersWork) InFlight(string, pools.Role, time.Time) pools.InFlight {
	return pools.InFlight{Requests: int(w), Tokens: 100 * int(w), Queue: time.Duration(w) * time.Second}
}
func (w othersWork) Busy(time.Time) int { return int(w) }

// Whatever changes about a server is seen by the next choice, also by one that goes by what an earlier one has found.
func TestKnownServers_AreWhatWouldBeFoundAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 3, testPrompt(4000))
		vllm := pools.Identity{Engine: "vllm", Version: "0.32.0", BlockTokens: "16"}
		for _, s := range f.Fleet.Servers() {
			s.SetIdentity(vllm, true)
		}
		p, d := f.Fleet.Servers()[0], f.Fleet.Servers()[3]
		var lease *pools.Lease
		claim := func(s *pools.Server, leg pools.Role) {
			var err error
			if lease, err = s.Claim(leg, curve.Work{Tokens: 1000, Computed: 1000, Prompt: 900, Estimate: 3 * time.Second}, false, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		end := func() { lease.Release() }
		report := func(running, used float64) {
			known := func(value float64) load.Gauge { return load.Gauge{Value: value, Known: true} }
			d.ReportLoad(load.Load{Running: known(running), KVUsed: known(used), KVTokens: known(100_000), TokenBytes: known(1000 * running), At: time.Now()})
		}
		sgl := vllm
		sgl.Version = "0.31.0"
		var known knownServers
		var v snapshot
		for _, step := range []struct {
			name   string
			change func()
		}{
			{"work begins", func() { claim(p, pools.Prefill) }},
			{"some of it wears off", func() { time.Sleep(time.Second) }},
			{"and ends, which shows how fast the server is", func() { lease.MarkSent(0, time.Now()); time.Sleep(time.Second); lease.ReleasePrefilled(1000, 0, 0) }},
			{"what that showed fades", func() { time.Sleep(time.Minute) }},
			{"another decodes", func() { claim(d, pools.Decode) }},
			{"a prompt is computed there", func() {
				lease.BeginLocalPrefill(curve.Work{Tokens: 500, Computed: 500, Estimate: time.Second}, time.Now())
			}},
			{"it has ended", func() { end() }},
			{"a step", func() { d.ObserveStep(50*time.Millisecond, 10, 10_000, time.Now()) }},
			{"a step took no longer", func() {
				for range 20 {
					d.ObserveStepAtMost(time.Millisecond, 10, 10_000, time.Now())
				}
			}},
			{"another replica knows a curve", func() {
				p.ReceivePrefill(nil, curve.Report{Works: 10, Observed: 5, Predicted: 1, Curve: curve.Curve{1, 0.001, 0}, Confidence: 1}, 0, time.Now())
			}},
			{"and a step", func() {
				p.ReceiveStep(nil, curve.Report{Works: 10, Observed: 5, Predicted: 1, Curve: curve.Curve{1, 0.001, 0}, Confidence: 1}, 0, time.Now())
			}},
			{"load", func() { report(3, 0.5) }},
			{"more of it", func() { report(4, 0.7) }},
			{"it grows old", func() { time.Sleep(3*time.Hour + 1) }},
			{"load in an answer", func() {
				d.RecordORCA(http.Header{"Endpoint-Load-Metrics": {"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_running=2"}}, time.Now())
			}},
			{"load that is pushed", func() {
				d.RecordPushedLoad(0, 1, load.Load{Running: load.Gauge{Value: 7, Known: true}}, nil, time.Now())
			}},
			{"it asks for a pause", func() { p.MarkBusy(time.Second) }},
			{"which is over", func() { time.Sleep(2 * time.Second) }},
			{"hand-offs are missing", func() {
				for range 10 {
					p.RecordMissingHandoff(time.Now())
				}
			}},
			{"there is one", func() { p.RecordHandoff() }},
			{"a piece is lost", func() { d.RecordLostPiece(time.Now()) }},
			{"that is long ago", func() { time.Sleep(time.Hour / 2) }},
			{"it is another version", func() { d.SetIdentity(sgl, true) }},
			{"and the first again", func() { d.SetIdentity(vllm, true) }},
			{"it reports no ids", func() { d.RecordNoTokenIDs() }},
			{"a probe is late", func() { p.RecordLate(time.Now()) }},
			{"it answers", func() { time.Sleep(time.Second); p.RecordAlive(time.Now()) }},
			{"it does not start slowly any more", func() { time.Sleep(time.Minute) }},
			{"an operator drains it", func() { f.Fleet.SetDrain(p.ID(), true) }},
			{"and does so no more", func() { f.Fleet.SetDrain(p.ID(), false) }},
			{"scaling in drains it", func() { f.Fleet.SetDrainingUnits(map[string]bool{p.UnitName(): true}) }},
			{"and does so no more", func() { f.Fleet.SetDrainingUnits(nil) }},
			{"it fails", func() {
				for d.Breaker(pools.Decode, time.Now()) == breaker.Closed {
					claim(d, pools.Decode)
					lease.RecordResult(errors.New("it fails"))
					end()
					synctest.Wait() // for the probe request that follows
				}
			}},
			{"it is gone", func() { p.MarkDown("refused") }},
			{"it is back, with another model", func() { p.ProbePassed(p.Health(), []pools.Model{{ID: "x"}}, time.Now()) }},
			{"and with its own", func() { p.ProbePassed(p.Health(), []pools.Model{{ID: testModel}}, time.Now()) }},
			{"an adapter of that name", func() { p.ForgetModel(testModel) }},
			{"there is another one with its KV events", func() {
				f.Binder.Locality.SetSourceClasses(map[string]uint64{f.Fleet.Servers()[1].ID(): 1})
			}},
			{"another gateway has work", func() { f.Fleet.SetReplicaWork(othersWork(2)) }},
			{"and is gone", func() { f.Fleet.SetReplicaWork(nil) }},
		} {
			base := time.Now()
			f.Binder.retakeSnapshot(&v, &known, testModel, testModel, base)
			before := f.Binder.takeSnapshot(testModel, testModel, base)
			step.change()
			synctest.Wait()
			now := time.Now()
			f.Binder.retakeSnapshot(&v, &known, testModel, testModel, now)
			anew := f.Binder.takeSnapshot(testModel, testModel, now)
			want, got := seenIn(&anew), seenIn(&v)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: it is seen as\n%+v\nand would be found\n%+v", step.name, got, want)
			}
			if was := seenIn(&before); reflect.DeepEqual(want, was) {
				t.Errorf("%s: nothing has changed", step.name)
			}
		}
	})
}

// What has not changed is not looked at again; of a server at work nothing but its load is.
func TestKnownServers_AServerThatIsSteadyIsFoundOnce(t *testing.T) {
	f := newTestFleet(t, 2, testPrompt(4000))
	var known knownServers
	var v snapshot
	now := time.Now().Add(time.Hour / 2) // nobody starts slowly, and the load is young enough
	f.Binder.retakeSnapshot(&v, &known, testModel, testModel, now)
	const mark = 12345
	for i := range known.all {
		known.all[i].candidate.KVUsed = mark
	}
	changed := f.Fleet.Servers()[3]
	lease, err := changed.Claim(pools.Decode, curve.Work{Tokens: 100}, false, now)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	f.Binder.retakeSnapshot(&v, &known, testModel, testModel, now)
	for _, c := range append(v.candidates.Prefill, v.candidates.Decode...) {
		if kept := c.KVUsed == mark; kept == (c.ID == changed.ID()) {
			t.Errorf("%s has changed: %v; kept: %v", c.ID, c.ID == changed.ID(), kept)
		}
	}

	known.all[3].candidate.PieceBlock, known.all[3].candidate.KVUsed = mark, mark
	f.Binder.retakeSnapshot(&v, &known, testModel, testModel, now)
	if c := &v.candidates.Decode[cost.IndexOf(v.candidates.Decode, changed.ID())]; c.PieceBlock != mark || c.KVUsed == mark {
		t.Errorf("at work: its blocks are %d, as kept they would be %d; %d tokens of KV are in use, and it has changed", c.PieceBlock, mark, c.KVUsed)
	}
}
