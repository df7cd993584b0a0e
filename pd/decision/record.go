package decision

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/answerkv"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
)

// Outcomes of requests that did not fail before their answer began.
const (
	Served     = "served"
	Picked     = "picked"      // for another proxy, which sends it
	ClientLeft = "client left" // before that
)

// Record is why a request went where it did: one choice per attempt.
type Record struct {
	RequestID string
	Model     string
	API       string
	At        time.Time
	Choices   []Choice
	Outcome   string // Served, Picked, ClientLeft, or the error
	Ended     bool   // all that is known of it is here
}

// Result is what the request came to in the end: of a stream that was begun and broke, what its last attempt did.
func (d *Record) Result() string {
	if n := len(d.Choices); (d.Outcome == Served || d.Outcome == Picked) && n > 0 && d.Choices[n-1].Outcome != "" {
		return d.Choices[n-1].Outcome
	}
	return d.Outcome
}

// Choice is what one attempt chose from, and how it ended.
type Choice struct {
	Demand     cost.Demand
	Prompt     Prompt
	Candidates cost.Candidates
	Chosen     cost.Alternative
	Reason     string             // why decode runs alone, empty for a pair
	Mismatch   string             // what keeps servers from making a pair, where that is why
	FirstToken firsttoken.Outcome // its zero value: no prefill answered
	AnswerKV   answerkv.Reading   // its zero value: none was to be read
	Fetch      Fetch              // its zero value: nothing was to be fetched
	Panic      bool               // breakers were ignored
	Outcome    string             // empty when it served; ClientLeft, or the error
	Measured   Measured
}

// PredictedCache is how many of the prompt's tokens the server that computes it was believed to
// hold, or fetched, and how many were to be computed, one at least.
func (c *Choice) PredictedCache() (held, computed int) {
	server, candidates := c.Chosen.Prefill, c.Candidates.Prefill
	if server == "" {
		server, candidates = c.Chosen.Decode, c.Candidates.Decode
	}
	if i := cost.IndexOf(candidates, server); i >= 0 {
		held = candidates[i].Cached.GPU
		if c.Fetch.Came() {
			held += c.Fetch.Tokens
		}
		held = min(held, max(0, c.Demand.PromptTokens-1))
		return held, max(1, c.Demand.PromptTokens-held)
	}
	return 0, c.Demand.PromptTokens
}

// NoPair is the Reason where prefill servers are there and make no pair with decode servers.
const NoPair = "no_pair"

// Prompt is what was known of a prompt's tokens when its servers were chosen.
type Prompt struct {
	By      tokens.Method // how they were found
	Tokens  int           // leading ones that are known
	Whole   bool          // they are all
	Unknown tokens.Reason // why none are known; "" where some are
	Guessed bool          // none are known, and what servers hold is guessed by the prompt's text
}

// Measured is what one attempt took, as the gateway saw it. A time of zero was not measured.
type Measured struct {
	// Prefill is from sending the prefill leg to its answer: the server's queue and the
	// computation. Where both legs run at once it is not seen when it is done.
	Prefill time.Duration
	// Transfer is from sending decode after prefill to its first content event: the KV on
	// the link, the wait for room, and a step. No engine tells them apart.
	Transfer time.Duration
	// FirstToken is from the choice to the first content event of a stream, Whole to the end of
	// the answer.
	FirstToken, Whole time.Duration
	// Usage is what the engines counted; Cached is that of the server that computed the prompt.
	Usage api.Usage
}
