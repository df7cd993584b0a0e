package pd

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pools"
)

// journey is what one request has been through so far. It belongs to the
// goroutine that serves the request.
type journey struct {
	req     *Request
	arrived time.Time
	// fingerprint is that of the request as it came.
	fingerprint uint64
	promises    *promises // what predictions are worth
	tried       map[tried]bool
	retries     int
	prefix      *prefix // nil while nothing is asked
	choices     []Choice
	leases      []*pools.Lease // all that were taken; releasing one twice does nothing
	last        *LegError
	story       *story // nil where a stream cannot be continued
	resumed     bool   // this journey continues a stream that broke

	migrations int    // how often its stream was continued
	servedBy   string // the decode server of the last answer

	prefillFailures int
	// alone is set once prefill elsewhere is given up for this request.
	alone bool
	// freeRetry is set when the failure was expected and is not the server's.
	freeRetry bool
	// handoff waits for another decode server; nil without one.
	handoff *Handoff
}

type tried struct {
	leg    Leg
	server string
}

func newJourney(req *Request, arrived time.Time) *journey {
	return &journey{
		req: req, arrived: arrived, fingerprint: req.Fingerprint(),
		tried: make(map[tried]bool), alone: req.Aggregated,
	}
}

// failed keeps what a failed leg means for the next choice: the same leg never goes
// to the same server twice, save where the server lacked an adapter.
func (j *journey) failed(e *LegError) {
	j.last = e
	if n := len(j.choices); n > 0 {
		j.choices[n-1].Outcome = e.Error()
	}
	if e.Kind == Unready && e.Status != 0 {
		return // it lost the adapter, and will load it when it is asked again
	}
	j.tried[tried{e.Leg, e.Server}] = true
	switch e.Leg {
	case PrefillLeg:
		if j.req.ForcedTool && e.Status == 500 {
			// vLLM #38911: a forced tool call cannot be cut to one token.
			j.alone, j.freeRetry = true, true
		}
		if j.prefillFailures++; j.prefillFailures >= 2 {
			j.alone = true
		}
	case DecodeLeg:
		if e.Kind == Broken || e.Kind == Timeout {
			// The read may have consumed the blocks, or the transfer is what
			// failed: nothing that crosses a link is tried again.
			j.alone = true
		}
	}
}

// release gives back whatever places are still held.
func (j *journey) release() {
	for _, l := range j.leases {
		l.Release()
	}
}

// lastErrorOr returns the last leg's error where there was one: it says more to
// the client than that no server is left.
func (j *journey) lastErrorOr(err error) error {
	if j.last != nil {
		return j.last
	}
	return err
}

// usableHandoff returns the hand-off that waits for a decode server, nil if
// there is none or it is too old.
func (j *journey) usableHandoff(now time.Time, age time.Duration) *Handoff {
	if j.handoff == nil || now.Sub(j.handoff.Created) > age {
		return nil
	}
	return j.handoff
}

// late reports whether the cheapest that is left is predicted to miss the request's
// deadline. What was tried already is not given up: its work would be lost.
func (j *journey) late(chosen Alternative, now time.Time) bool {
	if j.req.Deadline.IsZero() || len(j.tried) > 0 || j.resumed {
		return false
	}
	return now.Add(j.promises.by(chosen.Terms.TTFT())).After(j.req.Deadline)
}

// aloneReason says why decode runs without a prefill server, "" for a pair.
func (j *journey) aloneReason(v *view, chosen Alternative) string {
	switch {
	case chosen.Prefill != "":
		return ""
	case j.req.Aggregated:
		return "aggregated"
	case j.retries > 0 || j.alone:
		return "fallback"
	case len(v.field.Prefill) == 0:
		return "no_prefill"
	}
	return "cheaper"
}

// computed is how much of the prompt the server that was chosen for it had to compute,
// as far as is known.
func (j *journey) computed() int {
	if len(j.choices) == 0 {
		return j.req.PromptTokens
	}
	c := &j.choices[len(j.choices)-1]
	server, candidates := c.Chosen.Prefill, c.Field.Prefill
	if server == "" {
		server, candidates = c.Chosen.Decode, c.Field.Decode
	}
	for i := range candidates {
		if candidates[i].ID == server {
			return max(1, c.Demand.PromptTokens-candidates[i].Cached.GPU)
		}
	}
	return c.Demand.PromptTokens
}

// view is what a choice is made from: the usable servers and what is known of
// them.
type view struct {
	prefill, decode           []*pools.Server // by their numbers in the field
	field                     Field
	prefillPanic, decodePanic bool
	anyway                    bool     // claim without asking breakers
	handoff                   *Handoff // decode only: prefill is done
}

// missing names the role that has no usable server.
func (v *view) missing() *NoServerError {
	if len(v.field.Decode) == 0 {
		return &NoServerError{Role: pools.Decode}
	}
	return &NoServerError{Role: pools.Prefill}
}

// find returns one of the usable servers of a role.
func find(list []*pools.Server, id string) *pools.Server {
	return list[slices.IndexFunc(list, func(s *pools.Server) bool { return s.ID() == id })]
}

// look gathers the servers that the request may still use. Those that refused
// the claim of this choice are left out.
func (o *Orchestrator) look(j *journey, refused map[string]bool, now time.Time) view {
	v := view{handoff: j.usableHandoff(now, o.Config.HandoffAge)}
	all := o.Fleet.Servers()
	share := o.Fleet.EjectShare()
	if o.Locality != nil && j.prefix != nil {
		o.Locality.match(j.prefix)
	}
	decode, panicked := pools.Candidates(all, j.req.Model, pools.Decode, share, now)
	v.decodePanic = panicked
	// Where the request has failed to decode it would most often fail again.
	failed := func(s *pools.Server) bool { return j.tried[tried{DecodeLeg, s.ID()}] }
	spare := slices.ContainsFunc(decode, func(s *pools.Server) bool { return !failed(s) && !refused[s.ID()] && j.mayRunAlone(s) })
	for _, s := range decode {
		c := o.candidate(j, s, now)
		c.NoPair = failed(s) || v.handoff == nil && !j.mayPair(s)
		c.NoAlone = spare && failed(s) || j.tried[tried{AloneLeg, s.ID()}] || v.handoff != nil || !j.mayRunAlone(s)
		if !refused[s.ID()] && !(c.NoPair && c.NoAlone) {
			v.decode, v.field.Decode = append(v.decode, s), append(v.field.Decode, c)
		}
	}
	if v.handoff != nil && len(v.decode) == 0 {
		j.handoff = nil // nobody else can use it
		return o.look(j, refused, now)
	}
	if v.handoff != nil {
		p := o.candidate(j, v.handoff.From, now)
		p.Queue = 0 // the work is done
		p.Cached = kvstate.Held{GPU: j.req.PromptTokens}
		v.prefill, v.field.Prefill = []*pools.Server{v.handoff.From}, []Candidate{p}
	} else {
		prefill, panicking := pools.Candidates(all, j.req.Model, pools.Prefill, share, now)
		v.prefillPanic = panicking
		for _, s := range prefill {
			if !refused[s.ID()] && !j.tried[tried{PrefillLeg, s.ID()}] && j.mayPair(s) {
				v.prefill, v.field.Prefill = append(v.prefill, s), append(v.field.Prefill, o.candidate(j, s, now))
			}
		}
	}
	o.offerRemotes(j, &v, all, now)
	v.field.Links = o.Links.Table(v.field.Prefill, v.field.Decode, now)
	return v
}

// mayPair reports whether the request may run on a pair with the server. Engines that
// cannot serve a request whole always run as pairs.
func (j *journey) mayPair(s *pools.Server) bool {
	c := connectorOf(s)
	if !c.pairs || !j.req.Dialect.Split || j.alone && c.alone || j.req.Dialect.Native && !s.Native {
		return false
	}
	return c.dialects == nil || slices.Contains(c.dialects, j.req.Dialect)
}

// mayRunAlone reports whether the decode server may serve the request by itself: what
// is no generation any server answers.
func (j *journey) mayRunAlone(s *pools.Server) bool {
	if j.req.Dialect.Native && !s.Native {
		return false
	}
	return connectorOf(s).alone || !j.req.Dialect.Split
}

// candidate is what the choice knows of a server. Load that is old or missing is
// replaced by what this gateway has on it.
func (o *Orchestrator) candidate(j *journey, s *pools.Server, now time.Time) Candidate {
	c := o.present(s, now)
	if o.Locality != nil && j.prefix != nil {
		c.Cached = o.Locality.held(j.prefix, s)
	}
	if view, adapter := s.Adapter(j.req.Model, now); adapter {
		c.Ready = o.Cost.Adapter.wait(view)
	}
	c.Ready += s.WakeTime(now)
	return c
}

// present is the part of it that is the same for all requests. What this gateway and
// the other replicas sent counts at once; what the engine says of itself is a scrape
// old, and counts where it says more: others may use the server too.
func (o *Orchestrator) present(s *pools.Server, now time.Time) Candidate {
	sent, prefill := s.InFlight(pools.Decode, now), s.InFlight(pools.Prefill, now)
	load, curve := s.FreshLoad(now), s.PrefillCurve(now)
	c := Candidate{
		ID:      s.ID(),
		Class:   s.Class(),
		Group:   s.GroupNumber(),
		Place:   placeOf(s),
		Both:    s.Role == pools.Both,
		Queue:   prefill.Queue + load.ForeignQueue(curve, now),
		Queued:  prefill.Requests,
		Prefill: curve,
		Step:    s.StepCurve(now),
		Running: sent.Requests,
		Decodes: sent.Requests,
		KVUsed:  sent.Tokens,
	}
	if load.Running.Known {
		c.Running = max(c.Running, int(load.Running.Value))
	}
	if load.RunningTokens.Known {
		c.KVUsed = max(c.KVUsed, int(load.RunningTokens.Value))
	}
	if load.KVUsed.Known && load.KVTokens.Known {
		c.KVUsed = max(c.KVUsed, int(load.KVUsed.Value*load.KVTokens.Value))
		c.KVFree, c.KVKnown = int(load.KVTokens.Value)-c.KVUsed, true
	}
	return c
}

func placeOf(s *pools.Server) Place { return Place{Host: s.Host, Rack: s.Rack, Zone: s.Zone} }
