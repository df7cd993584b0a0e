package pd

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// bindRequest is what a binding must know of a request. It belongs to the goroutine that
// serves the request, save while the request waits for its turn: then to the decider's, which
// looks up the prompt again, takes over its tokens where an engine has answered meanwhile, takes a
// probe, notes what of the prompt comes back, and changes nothing else.
type bindRequest struct {
	req       *Request
	base      string // the model whose servers serve it: of an adapter the one that it adapts
	arrived   time.Time
	entry     *queue.Entry // nil: it continues a stream, or is another replica's
	prefix    *prefix      // nil while nothing is asked
	continues bool         // it continues a stream that broke
	remote    bool         // it is another replica's; here it only gets its turn
	home      cost.Home    // of another replica's request, where its session was served last
	tried     priorAttempts
	cause     *spans.Cause  // why it is bound again; nil: it is not, or is not traced
	pieces    cost.Pieces   // how its prompt may be cut; 0: not
	certain   int           // leading tokens of the prompt that are known for certain
	begun     *begunPrefill // nil until a piece is prefilled
	// firstFromPrefill: where both servers of a pair can, the client gets prefill's token.
	firstFromPrefill bool

	returns returning // what of its prompt came before

	room *binding // for the next binding, which nobody has used; nil: there is none

	probe             bool          // it may be late
	waited            time.Duration // for a place, and for its servers
	unresponsiveUntil time.Time     // until when it waits for unresponsive servers; zero: it has not done so yet
}

// newBinding is an empty binding, in the request's own room where that is left.
func (r *bindRequest) newBinding() (b *binding) {
	if b, r.room = r.room, nil; b == nil {
		b = new(binding)
	}
	return b
}

// session is what the client says that the request belongs to, else the conversation that its prompt
// shows.
func (r *bindRequest) session() predict.Session {
	s := predict.Session{Tenant: r.req.Tenant, Model: r.req.Model, Hash: r.req.Session}
	if s.Hash == 0 && r.prefix != nil {
		s.Hash = r.prefix.tokens.Opening
	}
	return s
}

// turns are the conversation's turn that the request is, and the one before it, as its prompt shows
// them: of agents that branch off one conversation each has its own. Without a hash: none is known.
func (r *bindRequest) turns() (own, before predict.Session) {
	own = predict.Session{Tenant: r.req.Tenant, Model: r.req.Model}
	before = own
	if r.prefix != nil {
		own.Hash, before.Hash = r.prefix.tokens.Whole, r.prefix.tokens.Before
	}
	return own, before
}

// takeLater takes over the tokens of a request's prompt where an engine has answered since it was located.
func (sn *Snapshotter) takeLater(r *bindRequest) {
	if !r.prefix.takeLater() {
		return
	}
	r.setPromptTokens()
	sn.setCertain(r)
	r.returns.lookAgain()
}

// setCertain sets up to which token the prompt of a request may be computed before its last leg. Nothing is of a prompt
// that does not fit the context: engines would compute pieces of it in vain, and then say of one how long it is.
func (sn *Snapshotter) setCertain(r *bindRequest) {
	r.certain = r.prefix.certainTokens()
	if r.certain == 0 {
		return
	}
	if longest := sn.Fleet.LongestContext(r.base); longest > 0 && r.req.PromptTokens >= longest {
		r.certain = 0
	}
}

// setPromptTokens sets the prompt's length to what is known of it.
func (r *bindRequest) setPromptTokens() {
	if t := &r.prefix.tokens; t.Complete {
		r.req.PromptTokens = len(t.IDs)
	} else {
		r.req.PromptTokens = max(r.req.PromptTokens, len(t.IDs))
	}
}

// hadTurn reports whether the request has had its turn: it is bound again.
func (r *bindRequest) hadTurn() bool {
	return r.continues || len(r.tried.legs) > 0 || r.tried.retries > 0
}

// aloneReason says why decode runs without a prefill server, "" for a pair.
func (r *bindRequest) aloneReason(v *snapshot, chosen cost.Alternative) string {
	switch {
	case chosen.Prefill != "":
		return ""
	case r.req.Aggregated || failsAtOneToken(r.req):
		return "aggregated"
	case r.tried.retries > 0 || r.tried.refusals > 0 || r.tried.mustAggregate:
		return "fallback"
	case !v.usable(v.candidates.Prefill):
		return "no_prefill"
	case !pairable(r.req, v.decodeFacts[cost.IndexOf(v.candidates.Decode, chosen.Decode)].by):
		return "aggregated"
	case v.pairs():
		return "cheaper"
	case v.twoServers():
		return decision.NoPair
	}
	return "no_prefill" // the only server that prefills is the one that decodes
}

// priorAttempts is what the next binding must know of those before it. Only the goroutine
// that serves the request changes it, between two bindings.
type priorAttempts struct {
	legs            map[triedLeg]bool // that failed
	retries         int               // out of the budget
	refusals        int               // of connections
	prefillFailures int
	mustAggregate   bool               // prefill elsewhere is given up
	failsAtOneToken bool               // no prefill leg can serve it, which is one token long
	broke           []string           // decode servers on which the stream broke, which others go before
	mayReturn       bool               // it may go to those too: no other can take it
	handoff         *connector.Handoff // waits for another decode server; nil without one
}

type triedLeg struct {
	leg    Leg
	server string
}

// record keeps what a failed leg means for the next choice: the same leg never goes to the
// same server twice, save where the server lacked an adapter.
func (t *priorAttempts) record(e *LegError, forcedTool bool) {
	if e.Kind == Unready && e.Status != 0 {
		return // it lost the adapter, and will load it when it is asked again
	}
	t.exclude(e.Leg, e.Server)
	switch e.Leg {
	case PrefillLeg:
		if !e.foundNobody() {
			t.prefillFailures++
		}
		// vLLM #38911: a forced tool call cannot be cut to one token.
		t.failsAtOneToken = t.failsAtOneToken || forcedTool && e.Status == 500
		t.mustAggregate = t.mustAggregate || t.failsAtOneToken || t.prefillFailures >= 2
	case DecodeLeg:
		if e.Kind == Broken || e.Kind == Timeout {
			// The read may have consumed the blocks, or the transfer is what
			// failed: nothing that crosses a link is tried again.
			t.mustAggregate = true
		}
	}
}

// exclude keeps a leg from a server.
func (t *priorAttempts) exclude(leg Leg, server string) {
	if t.legs == nil {
		t.legs = make(map[triedLeg]bool)
	}
	t.legs[triedLeg{leg, server}] = true
}

// has reports whether the request has failed in a leg on the server.
func (t *priorAttempts) has(leg Leg, s *pools.Server) bool {
	return len(t.legs) > 0 && t.legs[triedLeg{leg, s.ID()}]
}

// avoids reports whether the request's stream broke on a decode server, which others go
// before.
func (t *priorAttempts) avoids(s *pools.Server) bool {
	return !t.mayReturn && slices.Contains(t.broke, s.ID())
}

// servers are those that a leg has failed on, or its stream broke on: a copy, for functions that
// are called while the request goes on.
func (t *priorAttempts) servers(leg Leg) (servers []string) {
	if leg != PrefillLeg {
		servers = slices.Clone(t.broke)
	}
	for tried := range t.legs {
		if tried.leg == leg {
			servers = append(servers, tried.server)
		}
	}
	return servers
}

// usableHandoff returns the hand-off that waits for a decode server, nil if there is none or
// it is too old.
func (t *priorAttempts) usableHandoff(now time.Time, age time.Duration) *connector.Handoff {
	if t.handoff == nil || now.Sub(t.handoff.Created) > age {
		return nil
	}
	return t.handoff
}
