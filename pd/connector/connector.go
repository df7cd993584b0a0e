package connector

import (
	"context"
	"net/http"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// connector is how decode obtains the KV that prefill computed. What differs between
// the engines' protocols is here and in one file for each; how legs are sent, judged
// and tried again is the same for all.
type Connector struct {
	// engine is whose protocol it is, by the name that load tables have for it; "": several
	// engines'.
	Engine string
	// together: both legs are in flight at once, and neither ends without the other.
	// Else prefill answers first, and decode is sent what it handed over.
	Together bool
	// answersLast: prefill answers when decode has the KV, and not when it is computed.
	AnswersLast bool
	// carried: only decode gets a request, and calls prefill itself.
	Carried bool
	// pairs: servers run as pairs. alone: a decode server also serves requests whole.
	Pairs, Alone bool
	// higherFirst: of two requests the engine serves the one of higher priority first, where
	// it schedules by priority at all. Else the lower one.
	HigherFirst bool
	// tellsCached: decode reports the tokens that prefill found cached. With other
	// engines it reports what was transferred.
	TellsCached bool
	// pinned: the hand-off names the decode server, so no other one can use it.
	Pinned bool
	// dialects are those that pairs speak; nil: all.
	Dialects []*api.Dialect

	// name returns the request id of both legs; nil: any will do.
	name func(from, to *pools.Server) string
	// pulls reports whether the server, when it computes a prompt, can pull the beginning from
	// another one, and others from it; nil: never.
	Pulls func(*pools.Server) bool
	// queryEngines asks a prefill server which engines compute there, by rank, where the
	// legs name one; nil: they do not.
	QueryEngines func(context.Context, http.RoundTripper, *pools.Server) (map[int]string, error)
	// prefill returns the prefill leg.
	Prefill func(*Transfer) LegRequest
	// verify reports what prefill's answer lacks without which it is a failure; nil: it may
	// lack a hand-off, and decode computes the prompt then.
	Verify func(answer []byte) error
	// decode returns the decode leg. answer is prefill's, nil when both run together.
	decode func(t *Transfer, answer []byte) handed
	// final returns the whole answer when prefill's was that already; nil: it never is.
	final func(t *Transfer, answer []byte) []byte
	// transferFault reports whether an engine's error says that the transfer failed.
	// nil: engines do not tell, and any failure of decode may be one.
	TransferFault func(body []byte) bool
}

// connectors by the names that pools.Spec knows.
var connectors = map[string]*Connector{
	"nixl":         nixl,
	"sglang":       sglang,
	"mooncake":     mooncake,
	"offload":      offload,
	"p2p-nccl":     nccl,
	"store":        store,
	"trtllm":       trtllm,
	"llmd-sidecar": sidecar,
	"aggregated":   {Alone: true},
}

func ConnectorOf(s *pools.Server) *Connector { return connectors[s.Connector()] }

// legRequest is what an engine is sent for one leg.
type LegRequest struct {
	Body   api.Body
	Header http.Header // besides the client's; nil: none
}

// handed is what prefill's answer means for decode.
type handed struct {
	leg LegRequest
	// kept: prefill holds the KV for decode. That it does not is a normal case.
	kept   bool
	tokens int // of the prompt that it covers; 0: as many as prefill reports
	// sharesIDs: the leg has prefill's token ids.
	sharesIDs bool
	// hosts are those from which decode fetches the KV, where prefill's answer names them.
	// nil: the leg names the server's own.
	hosts []string
}
