package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd"
)

// Watch is told of every request that is admitted, for those who plan how many servers
// are needed.
type Watch func(Arrival) Watched

// Arrival is a request that is admitted.
type Arrival struct {
	Model        string // whose servers serve it: of an adapter the base model
	Fingerprint  uint64
	PromptTokens int
	OutputTokens int // that the answer is expected to have
	Stream       bool
	TTFT, ITL    time.Duration // its objectives, 0 is none
}

// Watched is one such request. Answered is called when its first token is there, with
// the tokens of the prompt and those that were computed for it; then, or without that,
// one of the others.
type Watched interface {
	Answered(prompt, computed int)
	// Ended says that it is over, with the tokens of the answer, -1 if unknown; failed
	// that the service is at fault.
	Ended(output int, failed bool)
	// Refused says that capacity was lacking.
	Refused()
}

// WatchedBy tells watch of the requests from now on. It is for before Serve.
func (s *Server) WatchedBy(watch Watch) { s.watch = watch }

// unwatched is the watch of a server that nobody plans for.
type unwatched struct{}

func (unwatched) Answered(int, int) {}
func (unwatched) Ended(int, bool)   {}
func (unwatched) Refused()          {}

// arrive tells who plans of a request.
func (x *exchange) arrive(req *pd.Request) {
	a := Arrival{
		Model: x.server.pd.BaseOf(req.Model), Fingerprint: req.Fingerprint(),
		PromptTokens: req.PromptTokens, OutputTokens: x.server.pd.Binder.Outputs.Expect(req), Stream: req.Stream,
	}
	a.TTFT, a.ITL = x.server.pd.Binder.Config.SLO(req, a.Model)
	x.watched = x.server.watch(a)
}

// leave tells who plans how the exchange ended.
func (x *exchange) leave(outcome string, status int) {
	switch {
	case x.watched == nil: // it was not admitted
	case x.refused:
		x.watched.Refused()
	default:
		x.watched.Ended(x.output, status >= 500 || outcome == "broken_stream")
	}
}
