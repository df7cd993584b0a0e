package policy

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// account is what a gateway knows of the requests that it and, some time later,
// the other replicas have sent and not yet seen end. Nothing here was asked of a
// server: it follows from dispatches, from prefill's answers, and from the first
// and the last token of each stream.
type account struct {
	prefill []prefillAccount
	decode  []decodeAccount
}

// prefillAccount is the outstanding work of one prefill server.
type prefillAccount struct {
	work    curve.Backlog
	tokens  int    // prompt tokens less those believed cached, of requests not yet prefilled
	prompts int    // prompt tokens of the same
	sent    []*job // the same, in order of sending
}

// decodeAccount is the outstanding work of one decode server.
type decodeAccount struct {
	prompts   curve.Backlog // that it computes itself
	tokens    int           // of them, less those believed cached
	requests  int           // sent to the pair and not ended
	streaming int           // of them, past the first token
	began     float64       // sum of the times of the first tokens of those that stream
	context   int           // prompt tokens of all requests
	computing int           // of them, of those that have yet to be computed, here or by prefill servers
}

// computed is the tokens that the prefill server was believed to compute.
func (e *event) computed() int { return e.upTo - e.estimate.cached }

// prefillWork is what the request was believed to be to its prefill server.
func (e *event) prefillWork() curve.Work {
	return curve.Work{Computed: e.computed(), Estimate: runDuration(e.estimate.prefill), Shared: runDuration(e.estimate.shared), Rest: runDuration(e.estimate.rest)}
}

// estimate is what was believed of a request when it was sent.
type estimate struct {
	prefill    float64 // seconds on its prefill server
	shared     float64 // of them, what a step there takes whatever is in it
	rest       float64 // seconds of what is left of the prompt behind a piece of it
	nominal    float64 // seconds on a server of nominal speed
	cached     int     // tokens there, or on decode if that computes the prompt
	output     int     // expected tokens
	bytes      float64 // to move
	step       float64 // seconds of a decode step
	aggregated float64 // seconds until decode has computed it beside its batch; 0: as long as by itself
	room       bool    // it was to wait for KV room
}

// newAccount returns one of idle servers, of which prefill computes so many tokens in a step; 0:
// each prompt counts as a step.
func newAccount(prefills, decodes, stepTokens int) *account {
	a := &account{prefill: make([]prefillAccount, prefills), decode: make([]decodeAccount, decodes)}
	for p := range a.prefill {
		a.prefill[p].work.StepTokens = stepTokens
	}
	return a
}

func (a *account) recordDispatch(j *job, e *event, now float64) {
	if p := j.pair.Prefill; p != Aggregated {
		a.prefill[p].work.Begin(uint64(j.id), e.prefillWork(), clockTime(now))
		a.prefill[p].tokens += e.computed()
		a.prefill[p].sent = append(a.prefill[p].sent, j)
		a.prefill[p].prompts += e.upTo
	}
	if e.pieces > 0 {
		return // decode expects it since the first piece
	}
	d := &a.decode[j.pair.Decode]
	if j.pair.Prefill == Aggregated {
		d.prompts.Begin(uint64(j.id), curve.Work{Estimate: runDuration(e.estimate.prefill)}, clockTime(now))
		d.tokens += j.req.Prompt - e.estimate.cached
	}
	d.requests++
	d.context += j.req.Prompt
	d.computing += j.req.Prompt
}

// recordPrefilled returns how many seconds the server worked on the request by itself.
func (a *account) recordPrefilled(j *job, e *event, now float64) float64 {
	p := &a.prefill[j.pair.Prefill]
	ended, _ := p.work.End(uint64(j.id), clockTime(now))
	p.tokens -= e.computed()
	p.prompts -= e.upTo
	if e.upTo == j.req.Prompt {
		a.decode[j.pair.Decode].computing -= j.req.Prompt
	}
	p.sent = slices.DeleteFunc(p.sent, func(o *job) bool { return o == j })
	return ended.Served.Seconds()
}

// oldestTokens is how many tokens the oldest outstanding request had to compute.
func (p *prefillAccount) oldestTokens() int {
	if len(p.sent) == 0 {
		return 0
	}
	return p.sent[0].upTo - p.sent[0].estimate.cached
}

// runDuration is a time of the run as pd takes times: since an origin.
func runDuration(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }

func (a *account) recordFirstToken(j *job) {
	d := &a.decode[j.pair.Decode]
	d.prompts.End(uint64(j.id), clockTime(j.decodedAt))
	if j.pair.Prefill == Aggregated {
		d.tokens -= j.req.Prompt - j.estimate.cached
		d.computing -= j.req.Prompt
	}
	d.streaming++
	d.began += j.decodedAt
}

func (a *account) recordEnd(j *job) {
	d := &a.decode[j.pair.Decode]
	d.requests--
	d.streaming--
	d.began -= j.decodedAt
	d.context -= j.req.Prompt
}
