package policy

import (
	"math"
	"math/rand/v2"
	"time"
)

// gateway is one replica: what it knows, and the policy that it asks.
type gateway struct {
	cluster *cluster
	id      int
	rng     *rand.Rand // ties
	index   *index
	account *account
	learned *learned
	// computing is nil but of ours: peers do without it, or their rules count load for it.
	computing *computing
	view      View

	chooser Chooser // one of the two is nil
	late    queueingChooser
	waking  float64 // when late is asked again; infinite: not by time alone
}

// sameStep is the part of what was believed of a prefill below which it was done in the same
// step as the one before it.
const sameStep = 0.1

func newGateway(c *cluster, id, blocks int, seed uint64) *gateway {
	steps := 0
	if c.ours {
		steps = c.scenario.Hardware.PrefillTokens
	}
	g := &gateway{
		cluster: c, id: id,
		rng:     rand.New(rand.NewPCG(seed, 100+uint64(id))),
		index:   newIndex(c.scenario.Prefill+c.scenario.Decode, blocks),
		account: newAccount(c.scenario.Prefill, c.scenario.Decode, steps),
		learned: newLearned(c.scenario),
		waking:  math.Inf(1),
	}
	if c.ours {
		g.computing = newComputing(c.scenario.Prefill, c.scenario.Decode, blocks)
	}
	g.view = View{gateway: g, held: make([]int, c.scenario.Prefill+c.scenario.Decode), pending: make([]int, c.scenario.Prefill+c.scenario.Decode)}
	return g
}

// bind gives every replica its own instance of the policy.
func (c *cluster) bind(policy *Policy, seed uint64) {
	for i, g := range c.gateways {
		made := policy.New(c.scenario, rand.New(rand.NewPCG(seed, 200+uint64(i))))
		if late, ok := made.(queueingChooser); ok {
			g.late = late
		} else {
			g.chooser = made.(Chooser)
		}
	}
}

// decider is the replica that decides about a request: its own, or the first.
func (c *cluster) decider(j *job) *gateway {
	if c.oneDecider {
		return c.gateways[0]
	}
	return c.gateways[j.replica]
}

// arrive hands a request to the policy of its decider: it is sent at once, or
// joins the queue.
func (c *cluster) arrive(j *job) {
	g := c.decider(j)
	c.idleWait.begin(j)
	if g.late != nil {
		c.gateways[j.replica].requestTurn(j)
		return
	}
	v := g.viewFor(j)
	began := time.Now()
	j.pair = g.chooser.Choose(v)
	if o, ok := g.chooser.(orderer); ok {
		j.key = o.Key(v, j.pair)
	}
	if copier, ok := g.chooser.(prefixCopier); ok {
		if from, ok := copier.CopyFrom(v, j.pair); ok {
			j.copyFrom = c.prefills[from]
		}
	}
	c.tally.recordDecision(time.Since(began))
	g.send(j)
}

// requestTurn lets a request that arrived here wait for its turn at its decider, a hop away unless
// this is the one.
func (g *gateway) requestTurn(j *job) {
	decider := g.cluster.decider(j)
	if decider == g {
		g.decide(func(v *View) { g.late.Add(v, j) })
		return
	}
	g.cluster.cal.after(g.cluster.scenario.DeciderHop, func() {
		decider.decide(func(v *View) { decider.late.Add(v, j) })
	})
}

// send sends a request that was just bound, a hop away unless it arrived here.
func (g *gateway) send(j *job) {
	g.cluster.bindIdle(g, j)
	g.estimate(j)
	j.sender = g
	if g.computing != nil {
		g.computing.begin(j)
	}
	g.cluster.notifyGateways(j, dispatched)
	hop := 0.0
	if g.id != j.replica {
		hop = g.cluster.scenario.DeciderHop
	}
	g.cluster.cal.after(hop+g.cluster.scenario.trip(), func() { g.cluster.dispatch(j) })
}

// decide lets the queue change, sends what may go now, and sets the time of its
// next look.
func (g *gateway) decide(change func(v *View)) {
	v := &g.view
	v.now = g.cluster.cal.now
	began := time.Now()
	change(v)
	for {
		j, ok := g.late.Next(v)
		g.cluster.tally.recordDecision(time.Since(began))
		if !ok {
			break
		}
		g.send(j)
		began = time.Now()
	}
	wake, ok := g.late.Wake(v)
	if !ok || wake >= g.waking {
		return
	}
	g.waking = wake
	g.cluster.cal.at(wake, func() {
		if g.waking == wake {
			g.waking = math.Inf(1)
			g.decide(func(*View) {})
		}
	})
}

// stage is what a gateway sees of a request.
type stage int

const (
	dispatched stage = iota
	pieceDone        // prefill has answered, for a piece of the prompt
	prefilled        // prefill has answered
	streaming        // the first token is here
	ended            // the last token is here
)

// event is a stage of a request as it was when it came: until other replicas hear of it, the next
// piece of its prompt may have been sent.
type event struct {
	stage    stage
	sender   *gateway // that sent what the stage is of
	upTo     int
	pieces   int
	estimate estimate
}

// notifyGateways reports a request's stage to the replicas: to the one where it happens at
// once, or as soon as the engine's answer is there, to the others later.
func (c *cluster) notifyGateways(j *job, s stage) {
	at, trip := j.replica, c.scenario.trip()
	if s == dispatched {
		at, trip = j.sender.id, 0
	}
	e := event{stage: s, sender: j.sender, upTo: j.upTo, pieces: j.pieces, estimate: j.estimate}
	for _, g := range c.gateways {
		delay := trip
		switch {
		case g.id == at:
		case s == dispatched && g.id == j.replica, s != dispatched && g == c.decider(j):
			delay += c.scenario.DeciderHop // it is told its turn, or reports its work
		default:
			delay += c.scenario.ReplicaDelay
		}
		if delay == 0 {
			g.observe(j, &e)
			continue
		}
		c.cal.after(delay, func() { g.observe(j, &e) })
	}
}

// observe updates the account, learns, and lets the queue look again.
func (g *gateway) observe(j *job, e *event) {
	now := g.cluster.cal.now
	switch e.stage {
	case dispatched:
		g.account.recordDispatch(j, e, now)
		return
	case pieceDone, prefilled:
		if g.computing != nil && e.sender == g {
			g.computing.end(j, now+g.cluster.scenario.EventDelay)
		}
		served := g.account.recordPrefilled(j, e, now)
		nominal := e.estimate.nominal
		if g.cluster.ours && served < sameStep*nominal { // the work of a step whose fixed part another one bore
			nominal -= g.cluster.hw.PrefillStep
		}
		g.learned.speed(j.pair.Prefill, served, nominal)
		if e.stage == pieceDone {
			if g == g.cluster.decider(j) { // what is left waits for its turn again
				g.decide(func(v *View) { g.late.Add(v, j) })
			}
			break
		}
		if learner := g.learner(); learner != nil {
			g.view.now = now
			learner.Prefilled(&g.view, j)
		}
	case streaming:
		if g.computing != nil && e.sender == g && j.pair.Prefill == Aggregated {
			g.computing.end(j, now+g.cluster.scenario.EventDelay)
		}
		g.account.recordFirstToken(j)
		if holder := j.firstHolder(); holder != nil && e.sender == g && j.askedAt > 0 {
			holder.Continued(&g.view, j)
		}
		g.learnTransfer(j)
	case ended:
		g.account.recordEnd(j)
		g.learned.output(j.req.Output)
		if o, ok := g.policy().(endObserver); ok {
			o.Ended(j)
		}
	}
	if g.late != nil {
		g.decide(func(*View) {})
	}
}

// learner is the policy if it learns from transfers, nil otherwise.
func (g *gateway) learner() transferLearner {
	learner, _ := g.policy().(transferLearner)
	return learner
}

// policy is the replica's Chooser or queueingChooser.
func (g *gateway) policy() any {
	if g.late != nil {
		return g.late
	}
	return g.chooser
}

// learnTransfer lets the policy learn from a transfer.
func (g *gateway) learnTransfer(j *job) {
	learner := g.learner()
	if learner == nil || j.pair.Prefill == Aggregated {
		return
	}
	g.view.now = g.cluster.cal.now
	took := j.decodedAt - j.prefilledAt - j.awaited - g.cluster.scenario.handOff() - j.estimate.step
	learner.Transferred(&g.view, j, max(took, 0))
}

// estimate writes down what is believed of a request as it is sent.
func (g *gateway) estimate(j *job) {
	v := g.viewFor(j)
	e := &j.estimate
	e.output = v.Output()
	if p := j.pair.Prefill; p != Aggregated {
		e.cached = min(v.PrefillHit(p), j.upTo-1)
		if j.copyFrom != nil {
			e.cached = min(max(e.cached, v.PrefillHit(j.copyFrom.id)), j.upTo-1)
		}
		e.cached = min(max(e.cached, j.fetch.tokens), j.upTo-1)
		if v.scenario().Store != nil { // whatever was believed when it was chosen, its engine loads that
			e.cached = min(max(e.cached, v.StoreHit(p)), j.upTo-1)
		}
		e.nominal = v.prefillHardware(p).prefill(j.upTo, e.cached)
		e.nominal += float64(len(j.cuts)) * (v.scenario().RoundTrip + v.prefillHardware(p).PrefillStep)
		e.prefill, e.shared = e.nominal*v.speed(p), v.prefillHardware(p).PrefillStep
		e.rest = (v.prefillHardware(p).prefill(j.req.Prompt, e.cached) - e.nominal) * v.speed(p)
		e.nominal += j.fetch.seconds / v.speed(p) // before it
		e.prefill += j.fetch.seconds
		e.bytes = v.MissingBytes(j.pair.Decode)
		e.step = v.StepSeconds(j.pair.Decode)
		e.room = v.RoomSeconds(j.pair.Decode) > 0
		return
	}
	e.cached = v.DecodeHit(j.pair.Decode)
	if e.prefill = e.aggregated; e.prefill == 0 {
		e.prefill = g.cluster.hw.prefill(j.req.Prompt, e.cached)
	}
}

// viewFor returns the view for a request, now.
func (g *gateway) viewFor(j *job) *View {
	v := &g.view
	v.now, v.job = g.cluster.cal.now, j
	g.index.match(j.req.whole(), v.held)
	if g.computing != nil {
		copy(v.pending, v.held)
		g.computing.extend(j.req.whole(), v.held, v.now)
		if p := j.pair.Prefill; j.pieces > 0 { // nobody but the request itself computes its rest there
			v.held[p] = v.pending[p]
		}
		for i := range v.held {
			v.pending[i] = v.held[i] - v.pending[i]
		}
	}
	return v
}
