package pd

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/kvstate/ghost"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/share"
)

// snapshot is what a choice is made from: the servers of a model and what is known of them.
type snapshot struct {
	model, base                 string          // the base model is the model itself, or what it is an adapter of
	prefill, decode             []*pools.Server // by their numbers among the candidates
	prefillFacts, decodeFacts   []serverFacts   // likewise
	usablePrefill, usableDecode []*pools.Server // of them, for claims that ask nobody
	pulls                       bool            // some of them pull what a third server holds
	candidates                  cost.Candidates
	prefillPanic, decodePanic   bool
	ignoreBreakers              bool               // claim without asking breakers
	handoff                     *connector.Handoff // decode only: prefill is done

	strangers []strangers // that could fetch what the request lacks, and have not met

	kind      requestKind // of request that the candidates say how servers may serve
	kindIsSet bool        // it does
}

// Snapshotter sees the servers as a choice does: what is known of them, and how they may serve a
// request. It claims nothing. Its fields are set once, before the first request.
type Snapshotter struct {
	Config   BindConfig
	Fleet    *pools.Fleet
	Links    *cost.Links
	Locality *Locality  // nil: nothing is known of what servers hold
	Cost     cost.Model // what is known in seconds: here of adapters, in Chooser of all
	// Shares returns which hardware is to serve which requests of a base model, nil where
	// there is no plan. It must not wait. nil: there never is one.
	Shares   func(base string) *share.Table
	Answers  *answerkv.Answers // whose KV their servers keep; nil: none is used
	Meetings *predict.Meetings // which servers have fetched KV from which; nil: none is to
	Ghosts   *ghost.Memories   // of prompts that came before; nil: no cache is protected
}

// takeSnapshot looks at all servers of a model. Those that may take nothing now are out.
func (sn *Snapshotter) takeSnapshot(model, base string, now time.Time) snapshot {
	var v snapshot
	sn.retakeSnapshot(&v, nil, model, base, now)
	return v
}

// retakeSnapshot is takeSnapshot into the memory of one that is not needed any more. known is what earlier looks for the
// model found of servers; nil: nothing is kept.
func (sn *Snapshotter) retakeSnapshot(v *snapshot, known *knownServers, model, base string, now time.Time) {
	all := sn.Fleet.Servers()
	*v = snapshot{
		model: model, base: base, prefill: roomFor(v.prefill, all, pools.Prefill), decode: roomFor(v.decode, all, pools.Decode),
		usablePrefill: v.usablePrefill, usableDecode: v.usableDecode, strangers: v.strangers[:0],
		prefillFacts: roomFor(v.prefillFacts, all, pools.Prefill), decodeFacts: roomFor(v.decodeFacts, all, pools.Decode),
		candidates: cost.Candidates{Prefill: roomFor(v.candidates.Prefill, all, pools.Prefill), Decode: roomFor(v.candidates.Decode, all, pools.Decode)},
	}
	var prefills, decodes standings
	var nothing knownServers
	if known == nil {
		known = &nothing
	} else {
		sn.dropOutdated(known, len(all))
	}
	for i, s := range all {
		k := known.look(sn, i, s, model, now)
		if !k.serves {
			continue
		}
		v.pulls = v.pulls || k.facts.pulls
		if s.Role.Serves(pools.Prefill) {
			v.prefill, v.prefillFacts = append(v.prefill, s), append(v.prefillFacts, k.facts)
			v.candidates.Prefill = appendCandidate(v.candidates.Prefill, &k.candidate, prefills.add(&k.legs[0], now))
		}
		if s.Role.Serves(pools.Decode) {
			v.decode, v.decodeFacts = append(v.decode, s), append(v.decodeFacts, k.facts)
			v.candidates.Decode = appendCandidate(v.candidates.Decode, &k.candidate, decodes.add(&k.legs[1], now))
		}
	}
	v.usablePrefill, v.prefillPanic = sn.leaveOutUnusable(v.usablePrefill, v.prefill, v.candidates.Prefill, &prefills, model, pools.Prefill, now)
	v.usableDecode, v.decodePanic = sn.leaveOutUnusable(v.usableDecode, v.decode, v.candidates.Decode, &decodes, model, pools.Decode, now)
	averageTokenBytes(v.candidates.Prefill, v.candidates.Decode)
	cost.JudgeByPeers(&v.candidates)
	sn.protect(v)
	sn.setShares(v)
	sn.Links.SetMoving(v.candidates.Prefill, v.candidates.Decode, now)
	v.candidates.Links = sn.Links.Table(v.candidates.Prefill, v.candidates.Decode, now)
}

// roomFor is room for something of each server of a role, in which nothing is: that of a list of which nothing is read any
// more, where there is some.
func roomFor[T any](list []T, all []*pools.Server, role pools.Role) []T {
	if cap(list) > 0 {
		return list[:0]
	}
	n := 0
	for _, s := range all {
		if s.Role.Serves(role) {
			n++
		}
	}
	return make([]T, 0, n)
}

// appendCandidate appends a copy of a candidate. append itself would copy it twice, first to where its argument lies.
func appendCandidate(list []cost.Candidate, c *cost.Candidate, excluded bool) []cost.Candidate {
	list = slices.Grow(list, 1)[:len(list)+1]
	last := &list[len(list)-1]
	*last = *c
	last.Excluded = excluded
	return list
}

// standings are what is known of the servers of a role by themselves: whether they may be chosen.
type standings struct {
	judged     bool // some are judged by what the others are like
	unhindered int  // servers that nothing speaks against
	slow       int  // of them, those that start slowly
}

// add adds a server, and reports whether it may not be chosen.
func (a *standings) add(leg *legState, now time.Time) (out bool) {
	switch leg.standing {
	case pools.Out:
		return true
	case pools.Judged:
		a.judged = true
		return false
	}
	a.unhindered++
	if now.Before(leg.slowUntil) {
		a.slow++
	}
	return false
}

// settled reports whether the servers that are not out may all be chosen: where all start slowly, none is spared.
func (a *standings) settled() bool {
	return !a.judged && (a.slow == 0 || a.slow == a.unhindered)
}

// leaveOutUnusable marks the servers of a role that may not be chosen now, and returns the others. Those that are out are
// marked.
func (sn *Snapshotter) leaveOutUnusable(room, servers []*pools.Server, candidates []cost.Candidate, known *standings, model string, role pools.Role, now time.Time) (usable []*pools.Server, panicking bool) {
	if known.settled() {
		usable = room[:0]
		for i, s := range servers {
			if !candidates[i].Excluded {
				usable = append(usable, s)
			}
		}
		return usable, false
	}
	usable, panicking = pools.Candidates(room, servers, model, role, sn.Fleet.EjectShare(), now)
	next := usable // in the same order
	for i, s := range servers {
		if candidates[i].Excluded = len(next) == 0 || next[0] != s; !candidates[i].Excluded {
			next = next[1:]
		}
	}
	return usable, panicking
}

// serving is the servers of a role that serve a model, or served it when last up, in room that nothing is read of.
func serving(room, all []*pools.Server, model string, role pools.Role, now time.Time) []*pools.Server {
	out := slices.Grow(room[:0], len(all))
	for _, s := range all {
		if s.Role.Serves(role) && s.Serves(model, now) {
			out = append(out, s)
		}
	}
	return out
}

// averageTokenBytes makes what servers of a model say of the bytes of a token's KV the mean of all that say so, 0 if none
// does: of two servers the one that has shown nothing yet is not to look cheaper or dearer for that.
func averageTokenBytes(prefill, decode []cost.Candidate) {
	sum, known := 0.0, 0
	for _, servers := range [...][]cost.Candidate{prefill, decode} {
		for i := range servers {
			if shown := servers[i].KVBytesPerToken; shown > 0 {
				sum, known = sum+shown, known+1
			}
		}
	}
	mean := sum / float64(max(1, known))
	for _, servers := range [...][]cost.Candidate{prefill, decode} {
		for i := range servers {
			servers[i].KVBytesPerToken = mean
		}
	}
}

// applyRequest turns the snapshot to a request: what servers hold of its prompt now, and how
// they may serve it.
func (sn *Snapshotter) applyRequest(r *bindRequest, v *snapshot, now time.Time) {
	sn.match(r)
	sn.applyMatched(r, v, now)
}

// match looks up what servers hold of a request's prompt now.
func (sn *Snapshotter) match(r *bindRequest) {
	if sn.Locality != nil && r.prefix != nil {
		sn.takeLater(r)
		sn.Locality.match(r.prefix)
		sn.lookUpSeen(r)
	}
}

// applyMatched is applyRequest with what servers held when that was last looked up.
func (sn *Snapshotter) applyMatched(r *bindRequest, v *snapshot, now time.Time) {
	if kind := requestKindOf(r); len(r.tried.legs) > 0 || !v.kindIsSet || kind != v.kind {
		sn.setEligibility(r, v, now)
		v.kind, v.kindIsSet = kind, len(r.tried.legs) == 0
	}
	if sn.Locality != nil && r.prefix != nil {
		sn.Locality.setCachedTokens(r.prefix, r.req.PromptTokens, v.prefill, v.prefillFacts, v.candidates.Prefill)
		sn.Locality.setCachedTokens(r.prefix, r.req.PromptTokens, v.decode, v.decodeFacts, v.candidates.Decode)
	}
	r.setNew(v)
	if r.begun != nil {
		v.keepBegun(r.begun)
	}
	if v.pulls {
		sn.setRemotes(r, v, sn.Fleet.Servers(), now)
	}
	if sn.Answers.Used() {
		sn.setAnswers(r, v, now)
	}
	sn.setFetches(r, v, now)
}

// requestKind is what says how servers may serve a request that has not failed yet. Most that wait
// are of one kind, and it is worked out once for all of them.
type requestKind struct {
	model         string
	dialect       *api.Dialect
	aggregated    bool
	mustAggregate bool
	oneToken      bool // fails at it
	proxied       bool
	subset        *pools.Subset
	samples       bool // several
}

func requestKindOf(r *bindRequest) requestKind {
	return requestKind{model: r.req.Model, dialect: r.req.Dialect, aggregated: r.req.Aggregated, mustAggregate: r.tried.mustAggregate, oneToken: r.tried.failsAtOneToken, proxied: r.req.proxied, subset: r.req.Subset, samples: r.req.Samples > 1}
}

// setEligibility writes how each server may serve the request.
func (sn *Snapshotter) setEligibility(r *bindRequest, v *snapshot, now time.Time) {
	all := r.req.Model == v.model && !r.req.Dialect.Native // support it
	for i, s := range v.prefill {
		c, at := &v.candidates.Prefill[i], &v.prefillFacts[i]
		c.Ready = sn.readyFor(r, v, s, at, now)
		c.NoPair = r.tried.has(PrefillLeg, s) || !r.req.subsetAllows(s, pools.Prefill) || !all && !supports(r, v, s, now) || !sn.mayPair(r, s, at) || at.missesHandoffs
	}
	// Where the request has failed to decode it would most often fail again.
	spare := false
	for i, s := range v.decode {
		c, at := &v.candidates.Decode[i], &v.decodeFacts[i]
		c.Ready = sn.readyFor(r, v, s, at, now)
		supported, failed := (all || supports(r, v, s, now)) && r.req.subsetAllows(s, pools.Decode), r.tried.has(DecodeLeg, s)
		c.NoPair = failed || !supported || !sn.mayPair(r, s, at) || r.tried.avoids(s)
		c.NoAggregated = r.tried.has(AggregatedLeg, s) || !supported || !sn.mayAggregate(r, s, at) || r.tried.avoids(s)
		spare = spare || !failed && !c.Excluded && !c.NoAggregated
	}
	if !spare || len(r.tried.legs) == 0 {
		return
	}
	for i, s := range v.decode {
		c := &v.candidates.Decode[i]
		c.NoAggregated = c.NoAggregated || r.tried.has(DecodeLeg, s)
	}
}

// supports reports whether a server supports the request: serves its model, and its API where
// that is an engine's own.
func supports(r *bindRequest, v *snapshot, s *pools.Server, now time.Time) bool {
	if r.req.Dialect.Native && !s.Native {
		return false
	}
	return r.req.Model == v.model || s.Serves(r.req.Model, now) // else an adapter, whose base is the snapshot's
}

// readyFor is how long until a server is ready for the request.
func (sn *Snapshotter) readyFor(r *bindRequest, v *snapshot, s *pools.Server, at *serverFacts, now time.Time) time.Duration {
	if r.req.Model == v.model {
		return at.ready
	}
	return sn.ready(s, r.req.Model, now)
}

// mayPair reports whether the request may run on a pair with the server. Engines that
// cannot serve a request whole always run as pairs.
func (sn *Snapshotter) mayPair(r *bindRequest, s *pools.Server, at *serverFacts) bool {
	givenUp := r.tried.mustAggregate && at.by.Aggregated && !sn.enforced(r, s, at.by)
	return pairable(r.req, at.by) && !givenUp
}

// mayAggregate reports whether the decode server may serve the request by itself: what
// is no generation any server answers.
func (sn *Snapshotter) mayAggregate(r *bindRequest, s *pools.Server, at *serverFacts) bool {
	return (at.by.Aggregated || !r.req.Dialect.Split) && !sn.enforced(r, s, at.by)
}

// enforced reports whether the server must leave the request's prompt to a prefill
// server. Several samples of a prompt cannot share a hand-off, and some calls that are demanded fail at one
// token: they run whole all the same.
func (sn *Snapshotter) enforced(r *bindRequest, s *pools.Server, by *connector.Connector) bool {
	return sn.Config.EnforceDisaggregation && s.Role == pools.Decode && !r.req.Aggregated && !r.tried.failsAtOneToken && pairable(r.req, by)
}

// pairable reports whether a connector has pairs for the request's API and its samples. A proxy sends one leg:
// decode has to call prefill itself.
func pairable(req *Request, by *connector.Connector) bool {
	return by.PairsTake(req.Dialect) && !(by.OneSample && req.Samples > 1) && (by.DecodeDriven || !req.proxied)
}

// snapshotFor is the snapshot of one request that is bound at once. Servers that refused the claim
// of this choice are out.
func (sn *Snapshotter) snapshotFor(r *bindRequest, refused map[string]bool, now time.Time) snapshot {
	v := sn.takeSnapshot(r.req.Model, r.base, now)
	for id := range refused {
		v.leaveOut(id)
	}
	sn.applyRequest(r, &v, now)
	if v.handoff = r.tried.usableHandoff(now, sn.Config.HandoffAge); v.handoff == nil {
		return v
	}
	from := candidateOf(v.handoff.From, now)
	from.Queue, from.Forming, from.Rest = 0, 0, 0 // the work is done
	from.Cached = cached.Tokens{GPU: r.req.PromptTokens}
	with := v
	with.prefill = []*pools.Server{v.handoff.From}
	with.candidates = cost.Candidates{Prefill: []cost.Candidate{from}, Decode: slices.Clone(v.candidates.Decode)}
	for i := range with.candidates.Decode {
		with.candidates.Decode[i].NoPair = r.tried.has(DecodeLeg, with.decode[i]) || r.tried.avoids(with.decode[i])
		with.candidates.Decode[i].NoAggregated = true
	}
	if !with.pairs() {
		v.handoff = nil // no other server can take it, or read it
		return v
	}
	with.candidates.Links = sn.Links.Table(with.candidates.Prefill, with.candidates.Decode, now)
	return with
}

// judgeAmongOwn lets a request choose from the servers that may serve it as if there were no others, but for those that
// refused it: one that is spared beside others, as while it starts slowly, serves whoever may use no other one. One that
// was ejected does not.
func (sn *Snapshotter) judgeAmongOwn(v *snapshot, refused map[string]bool, now time.Time) {
	judge := func(servers []*pools.Server, candidates []cost.Candidate, leg pools.Role) {
		own := make([]*pools.Server, 0, len(servers))
		for i, s := range servers {
			if c := &candidates[i]; !refused[c.ID] && !(c.NoPair && (c.NoAggregated || leg == pools.Prefill)) {
				own = append(own, s)
			}
		}
		usable, panicking := pools.Candidates(nil, own, v.model, leg, sn.Fleet.EjectShare(), now)
		if panicking {
			return
		}
		for i, s := range servers {
			candidates[i].Excluded = !slices.Contains(usable, s)
		}
	}
	if v.handoff == nil { // else prefill is done
		judge(v.prefill, v.candidates.Prefill, pools.Prefill)
	}
	judge(v.decode, v.candidates.Decode, pools.Decode)
}

// leaveOut lets a server be chosen no more.
func (v *snapshot) leaveOut(id string) {
	for _, servers := range [][]cost.Candidate{v.candidates.Prefill, v.candidates.Decode} {
		if i := cost.IndexOf(servers, id); i >= 0 {
			servers[i].Excluded = true
		}
	}
}

// usable reports whether one of the servers may be chosen in some way.
func (v *snapshot) usable(servers []cost.Candidate) bool {
	for i := range servers { // slices.ContainsFunc would copy each server
		if c := &servers[i]; !c.Excluded && !(c.NoPair && c.NoAggregated) {
			return true
		}
	}
	return false
}

// twoServers reports whether one server may prefill and another one decode, whether or not they make a pair.
func (v *snapshot) twoServers() bool {
	for p := range v.candidates.Prefill {
		from := &v.candidates.Prefill[p]
		if from.Excluded {
			continue
		}
		for d := range v.candidates.Decode {
			if to := &v.candidates.Decode[d]; !to.Excluded && to.ID != from.ID {
				return true
			}
		}
	}
	return false
}

// pairs reports whether a prefill and a decode server that may be chosen make a pair.
func (v *snapshot) pairs() bool {
	for p := range v.candidates.Prefill {
		from := &v.candidates.Prefill[p]
		if from.Excluded || from.NoPair {
			continue
		}
		for d := range v.candidates.Decode {
			to := &v.candidates.Decode[d]
			if !to.Excluded && !to.NoPair && from.Class == to.Class && from.ID != to.ID {
				return true
			}
		}
	}
	return false
}

// pairMismatch is what keeps the servers of a base model that may be chosen from making a pair, ""
// if they differ in nothing: those that prefill have handed nothing over lately.
func (v *snapshot) pairMismatch(base string) string {
	var servers []*pools.Server
	for i, s := range v.prefill {
		if !v.candidates.Prefill[i].Excluded {
			servers = append(servers, s)
		}
	}
	for i, s := range v.decode {
		if !v.candidates.Decode[i].Excluded && !slices.Contains(servers, s) {
			servers = append(servers, s)
		}
	}
	pairing := pools.Pairings(servers)[base]
	return pairing.Reason()
}

// missing says what is not there for the request: a role's server, or a pair.
func (v *snapshot) missing() *NoServerError {
	switch {
	case !v.usable(v.candidates.Decode):
		return &NoServerError{Role: pools.Decode}
	case v.usable(v.candidates.Prefill) && !v.pairs():
		return &NoServerError{Role: pools.Prefill, NoPair: true}
	}
	return &NoServerError{Role: pools.Prefill}
}

// candidateOf is what is known of a server that is the same for all requests. What this
// gateway and the other replicas sent counts at once, and what has ended no more; what the engine
// says of itself is a scrape old, and counts where it said more: others may use the server too. A step reads the KV
// of each sequence by itself; what requests share of it takes room once (package kvroom), and KVFree is what is
// left in tokens of such requests.
func candidateOf(s *pools.Server, now time.Time) (c cost.Candidate) {
	setCandidate(&c, s, now)
	return c
}

// setCandidate is candidateOf into the memory of another one: it is half a kilobyte.
func setCandidate(c *cost.Candidate, s *pools.Server, now time.Time) {
	*c = cost.Candidate{
		ID:       s.ID(),
		Class:    s.CompatibilityKey(),
		Group:    s.GroupNumber(),
		Topology: topologyOf(s),
		Both:     s.Role == pools.Both,
	}
	block := s.BlockTokens()
	if connector.KeepsPieces(s) && !s.LosesPieces(now) {
		c.PieceBlock = block
	}
	if connector.MaySayFirst(s) {
		c.FirstBlock, c.FetchBlock = block, block // it is the legs of pieces the other way (connector.TakesPieces)
	}
	prefills, steps := s.Beliefs(now)
	c.Prefill, c.PrefillKnown, c.PrefillError, c.Evidence = prefills.Curve, prefills.Confidence, prefills.Error, s.Evidence()
	c.Step, c.StepKnown, c.StepError = steps.Curve, steps.Confidence, steps.Error
	setLoad(c, s, now)
}

// setLoad writes the load of a server whose curves are written.
func setLoad(c *cost.Candidate, s *pools.Server, now time.Time) {
	prefill, sent := s.InFlightOfLegs(now)
	load := s.FreshLoad(now)
	c.Queued, c.Forming, c.Rest = prefill.Requests, prefill.Forming, prefill.Rest
	c.Queue = prefill.Queue + load.ExternalQueue(c.Prefill, now)
	c.Decodes, c.Running = sent.Requests, sent.Requests+int(load.ExternalRunning.Value)
	c.KVUsed = sent.Tokens + int(load.ExternalKV.Value)
	c.KVFree, c.KVKnown = s.KVFree(prefill, sent, load, now)
}

func topologyOf(s *pools.Server) cost.Topology {
	return cost.Topology{Host: s.Host, Rack: s.Rack, Zone: s.Zone}
}

// setShares writes which hardware the plan of a model gives which requests, where there is one.
func (sn *Snapshotter) setShares(v *snapshot) {
	if sn.Shares == nil {
		return
	}
	if v.candidates.Shares = sn.Shares(v.base); v.candidates.Shares == nil {
		return
	}
	for i, s := range v.prefill {
		v.candidates.Prefill[i].Kind = v.candidates.Shares.Column(s.Variant) + 1
	}
}
