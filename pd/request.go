package pd

import (
	"net/http"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
)

// Request is one client request, parsed and cleaned by the gateway. Nothing in
// it aliases a buffer of the HTTP server.
type Request struct {
	ID      string // what the client sees in x-request-id; never sent to an engine
	Dialect *api.Dialect
	Model   string
	Body    api.Body    // free of control fields
	Header  http.Header // what both legs carry besides Tandem's own

	Memory TextMemory // of Body; nil: it is not given back

	// Class is the priority class: 0 is served first. Within a class the tenants
	// take turns; Tenant is "" where there are none.
	Class  int
	Tenant string
	// Session is a hash of what the client calls the session that the request belongs to, 0
	// where it does not say. It breaks ties between servers, and says how long the answer may
	// be, among the tenant's own requests.
	Session uint64
	// Salt is the cache_salt in Body, "" without: the KV of equal prompts differs by it.
	Salt string
	// Deadline is when the first content must be there; the zero time is none.
	Deadline time.Time
	// TTFT and ITL are the request's own objectives, 0 where it has its model's.
	TTFT, ITL time.Duration

	Stream bool
	// PromptTokens and OutputTokens are predictions, for the choice only; but see PromptIsIDs.
	PromptTokens int
	OutputTokens int
	// PromptIsIDs is set where the prompt came as token ids, which PromptTokens is the count of: then it is exact, and
	// a prompt that is too long is refused.
	PromptIsIDs bool
	// Size is what PromptTokens is predicted by, and what the engine's count teaches of.
	Size predict.Prompt
	// OnlyText is set where the prompt's messages were seen to be nothing but text.
	OnlyText bool
	// MaxOutput is the bound on the answer in tokens, the client's or its key's, 0
	// without one, and MaxField the field that it stands in.
	MaxOutput int
	MaxField  string
	// Aggregated requests run on one decode server and never share a hand-off:
	// several samples or prompts, and paths without a prefill phase.
	Aggregated bool
	// Answers is how many samples of how many prompts are asked for; 0 is one.
	Answers int
	// Samples is how many answers to each prompt are asked for (n); 0 is one.
	Samples int
	// ForcedTool is set when tool_choice demands a call. vLLM's prefill may
	// answer 500 to that at one token (vLLM #38911).
	ForcedTool bool
	// HideUsage is set when the usage chunk was asked for by the gateway and not
	// by the client.
	HideUsage bool

	// Subset are the servers that the request may go to; nil: all.
	Subset *pools.Subset

	proxied   bool          // a proxy sends it to the servers that it gets, see Pick
	continues *requestState // the request whose broken stream this is the rest of; nil: none

	fingerprint   uint64 // see Fingerprint
	fingerprinted bool
}

// Expected is what is known of the request's answer beforehand, in whole.
func (r *Request) Expected() predict.Answer {
	return predict.Answer{Model: r.Model, Tenant: r.Tenant, Class: r.Class, Session: r.Session, Tokens: r.OutputTokens, Max: r.MaxOutput}
}

// Answer is what goes to the client: a whole body, or a stream whose first
// content event is in hand.
type Answer struct {
	Status      int
	ContentType string
	Metadata    string // of a body of api.BinaryType; "" where the engine says nothing of it
	Body        []byte
	Stream      *Stream // nil when Body is the answer
	leg         *legStream
	Prefill     string // server IDs; Prefill is empty when decode ran alone
	Decode      string
	Usage       api.Usage // of a whole body
	Timing      Timing
	// CachedTokens are the prompt's tokens that the server which prefilled had in its cache, and
	// ComputedTokens the rest, as predicted when the pair was chosen.
	CachedTokens, ComputedTokens int
	// Held counts the memory of a long whole body, until it is released.
	Held enginehttp.HeldAnswer
}

// isComplete reports whether all of the answer is here.
func (a *Answer) isComplete() bool { return a.leg == nil }

// withoutText is the request with what the client says let go of.
func (r *Request) withoutText() *Request {
	rest := *r
	rest.Body, rest.Memory = r.Body.WithoutText(), nil
	return &rest
}

// forTransfer is what a transfer needs to know of the request.
func (r *Request) forTransfer() connector.Request {
	return connector.Request{Dialect: r.Dialect, Body: r.Body, Answers: r.Answers, OnlyText: r.OnlyText}
}

// Fingerprint tells requests apart without keeping their text. It is made when it is first
// asked for: of most requests never.
func (r *Request) Fingerprint() uint64 {
	if r.fingerprinted {
		return r.fingerprint
	}
	r.fingerprint, r.fingerprinted = xxhash.Sum64String(r.Dialect.Name)^r.Body.Sum(), true
	return r.fingerprint
}
