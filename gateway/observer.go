package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd"
)

// Observer follows the requests that are admitted, for the planner of how many servers are
// needed. It is called with each of them.
type Observer func(Arrival) Observation

// Arrival is a request that is admitted.
type Arrival struct {
	Model        string // whose servers serve it: of an adapter the base model
	Fingerprint  uint64
	PromptTokens int
	OutputTokens int // that the answer is expected to have
	Stream       bool
	TTFT, ITL    time.Duration // its objectives, 0 is none
}

// Observation follows one such request: RecordFirstToken is called at most once, then one of the
// others.
type Observation interface {
	// RecordFirstToken is called when the first token is there, with the tokens of the prompt and
	// those of them that were computed for it.
	RecordFirstToken(prompt, computed int)
	// RecordEnd is called when the request is over, with the tokens of the answer, -1 if unknown;
	// failed says that the service is at fault.
	RecordEnd(output int, failed bool)
	// RecordRefusal is called when capacity was lacking.
	RecordRefusal()
}

// SetObserver lets an observer follow the requests from now on. It is for before Serve.
func (s *Server) SetObserver(observe Observer) { s.observe = observe }

// unobserved is the observation of a server for which no planner runs.
type unobserved struct{}

func (unobserved) RecordFirstToken(int, int) {}
func (unobserved) RecordEnd(int, bool)       {}
func (unobserved) RecordRefusal()            {}

// observeStart lets the observer follow the request.
func (x *exchange) observeStart(req *pd.Request) {
	a := Arrival{
		Model: x.server.pd.BaseOf(req.Model), Fingerprint: req.Fingerprint(),
		PromptTokens: req.PromptTokens, OutputTokens: x.server.pd.Binder.Outputs.Expect(req.Expected()), Stream: req.Stream,
	}
	a.TTFT, a.ITL = x.server.pd.Binder.Config.SLO(req, a.Model)
	x.observation = x.server.observe(a)
}

// observeEnd reports to the observation how the exchange ended.
func (x *exchange) observeEnd(outcome string, status int) {
	switch {
	case x.observation == nil: // it was not admitted
	case x.refused:
		x.observation.RecordRefusal()
	default:
		x.observation.RecordEnd(x.output, status >= 500 || outcome == "broken_stream")
	}
}
