package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd"
)

// Observer follows the requests that are admitted, for those who plan how many servers are
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

// Observation follows one such request. Answered is called when its first token is there,
// with the tokens of the prompt and those that were computed for it; then, or without that,
// one of the others.
type Observation interface {
	Answered(prompt, computed int)
	// Ended says that it is over, with the tokens of the answer, -1 if unknown; failed
	// that the service is at fault.
	Ended(output int, failed bool)
	// Refused says that capacity was lacking.
	Refused()
}

// SetObserver lets an observer follow the requests from now on. It is for before Serve.
func (s *Server) SetObserver(observe Observer) { s.observe = observe }

// unobserved is the observation of a server that nobody plans for.
type unobserved struct{}

func (unobserved) Answered(int, int) {}
func (unobserved) Ended(int, bool)   {}
func (unobserved) Refused()          {}

// observeStart lets the observer follow the request.
func (x *exchange) observeStart(req *pd.Request) {
	a := Arrival{
		Model: x.server.pd.BaseOf(req.Model), Fingerprint: req.Fingerprint(),
		PromptTokens: req.PromptTokens, OutputTokens: x.server.pd.Binder.Outputs.Expect(req.Expected()), Stream: req.Stream,
	}
	a.TTFT, a.ITL = x.server.pd.Binder.Config.SLO(req, a.Model)
	x.observation = x.server.observe(a)
}

// observeEnd tells the observation how the exchange ended.
func (x *exchange) observeEnd(outcome string, status int) {
	switch {
	case x.observation == nil: // it was not admitted
	case x.refused:
		x.observation.Refused()
	default:
		x.observation.Ended(x.output, status >= 500 || outcome == "broken_stream")
	}
}
