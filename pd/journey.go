package pd

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/transcript"
	"github.com/tandem-gateway/tandem/pools"
)

// requestState is what one request has been through so far. It belongs to the
// goroutine that serves the request.
type requestState struct {
	req        *Request
	base       string // the model whose servers serve it: of an adapter the one that it adapts
	arrived    time.Time
	waited     time.Duration // it waited for a place, and for its servers
	entry      *queueEntry   // in the queue; nil for another replica's request
	came       *Request      // as it came: what the quarantine knows it by
	tried      map[tried]bool
	retries    int
	prefix     *prefix // nil while nothing is asked
	hits       hits    // of it, on the server that was chosen to compute it
	choices    []Choice
	leases     []*pools.Lease // all that were taken; releasing one twice does nothing
	last       *LegError
	transcript *transcript.Transcript // nil where a stream cannot be continued
	continues  bool                   // it continues a stream that broke
	probe      bool                   // it may be late
	remote     bool                   // the request is another replica's; here it only gets its turn

	continuations int      // how often its stream was continued
	broke         []string // decode servers on which its stream broke, which others go before
	mayReturn     bool     // it may go to those too: no other can take it
	servedBy      string   // the decode server of the last answer

	prefillFailures int
	// alone is set once prefill elsewhere is given up for this request.
	alone bool
	// retryWithoutBudget is set when the failure was expected and is not the server's.
	retryWithoutBudget bool
	// doubtUntil is how long it waits for servers in doubt; zero: it has not done so yet.
	doubtUntil time.Time
	// handoff waits for another decode server; nil without one.
	handoff *connector.Handoff
	// given is the hand-off of the last decode leg, nil without one.
	given *connector.Handoff
}

type tried struct {
	leg    Leg
	server string
}

func newRequestState(req *Request, arrived time.Time) *requestState {
	return &requestState{
		req: req, arrived: arrived, came: req,
		tried: make(map[tried]bool), alone: req.Aggregated,
	}
}

// isAgain reports whether the request has had its turn: it is bound again.
func (j *requestState) isAgain() bool { return j.continues || len(j.tried) > 0 || j.retries > 0 }

// failed keeps what a failed leg means for the next choice: the same leg never goes
// to the same server twice, save where the server lacked an adapter.
func (j *requestState) failed(e *LegError) {
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
			j.alone, j.retryWithoutBudget = true, true
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

// triedBy returns the servers that a leg has failed on, or its stream broke on: a copy, for
// those who are called while the request goes on.
func (j *requestState) triedBy(leg Leg) (servers []string) {
	if leg != PrefillLeg {
		servers = slices.Clone(j.broke)
	}
	for t := range j.tried {
		if t.leg == leg {
			servers = append(servers, t.server)
		}
	}
	return servers
}

// avoids reports whether the request's stream broke on a decode server, which others go
// before.
func (j *requestState) avoids(s *pools.Server) bool {
	return !j.mayReturn && slices.Contains(j.broke, s.ID())
}

// death says how a server died of the request, as far as that is known.
func (j *requestState) death(failed *LegError) death {
	d := death{server: failed.Server, cause: "it was prefilling"}
	switch {
	case failed.Leg == PrefillLeg:
	case failed.Leg == AloneLeg || !j.given.HasKV():
		d.cause = "it was computing the prompt and decoding"
	case j.given.SharesIDs:
		d.cause, d.handoff = fmt.Sprintf("it was loading a hand-off of %s, with the token ids of it", j.given.From.ID()), true
	default:
		d.cause, d.handoff = fmt.Sprintf("it was loading a hand-off of %s, of %d tokens: a prompt that has more KV blocks on decode ends vLLM's engine. "+
			"Do both servers have the same chat template and tokenizer?", j.given.From.ID(), j.given.Coverage().Prompt), true
	}
	return d
}

// release gives back whatever places are still held.
func (j *requestState) release() {
	for _, l := range j.leases {
		l.Release()
	}
}

// lastErrorOr returns the last leg's error where there was one: it says more to
// the client than that no server is left.
func (j *requestState) lastErrorOr(err error) error {
	if j.last != nil {
		return j.last
	}
	return err
}

// usableHandoff returns the hand-off that waits for a decode server, nil if
// there is none or it is too old.
func (j *requestState) usableHandoff(now time.Time, age time.Duration) *connector.Handoff {
	if j.handoff == nil || now.Sub(j.handoff.Created) > age {
		return nil
	}
	return j.handoff
}

// aloneReason says why decode runs without a prefill server, "" for a pair.
func (j *requestState) aloneReason(v *snapshot, chosen cost.Alternative) string {
	switch {
	case chosen.Prefill != "":
		return ""
	case j.req.Aggregated:
		return "aggregated"
	case j.retries > 0 || j.alone:
		return "fallback"
	case !v.usable(v.field.Prefill):
		return "no_prefill"
	case !pairable(j.req, v.decodeFacts[cost.IndexOf(v.field.Decode, chosen.Decode)].by):
		return "aggregated"
	case !v.pairs():
		return NoPair
	}
	return "cheaper"
}

// computed is how much of the prompt the server that was chosen for it had to compute,
// as far as is known.
func (j *requestState) computed() int {
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
