package connector

import (
	"context"
	"net/http"
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// Connector is how decode obtains the KV that prefill computed. What differs between
// the engines' protocols is here and in one file for each; how legs are sent, judged
// and tried again is the same for all.
type Connector struct {
	// Engine is whose protocol it is, by the name that load tables have for it; "": several
	// engines'.
	Engine string
	// ConcurrentLegs: both legs are in flight at once, and neither ends without the other.
	// Else prefill answers first, and decode is sent what its answer says.
	ConcurrentLegs bool
	// RespondsAfterTransfer: prefill answers when decode has the KV, and not when it is
	// computed.
	RespondsAfterTransfer bool
	// Pulls: decode's leg has it pull what its prefix cache lacks of the prompt when it comes.
	Pulls bool
	// DecodeDriven: only decode gets a request, and calls prefill itself.
	DecodeDriven bool
	// Pairs: servers run as pairs. Aggregated: a decode server also serves requests whole.
	Pairs, Aggregated bool
	// OneSample: a pair gives one answer to a prompt.
	OneSample bool
	// ReportsCachedTokens: decode reports the tokens that prefill found cached. With other
	// engines it reports what was transferred.
	ReportsCachedTokens bool
	// DecodeBound: the hand-off names the decode server, so no other one can use it.
	DecodeBound bool
	// Dialects are those that pairs speak; nil: all.
	Dialects []*api.Dialect

	// requestID returns the request id of both legs; nil: any will do.
	requestID func(from, to *pools.Server) string
	// CanPull reports whether the server, when it computes a prompt, can pull the beginning from
	// another one, and others from it; nil: never.
	CanPull func(*pools.Server) bool
	// QueryEngines asks a prefill server which engines compute there, by rank, where the
	// legs name one; nil: they do not.
	QueryEngines func(context.Context, http.RoundTripper, *pools.Server) (map[int]string, error)
	// Prefill returns the prefill leg.
	Prefill func(*Transfer) LegRequest
	// Verify reports what prefill's answer lacks without which it is a failure; nil: it may
	// lack a hand-off, and decode computes the prompt then.
	Verify func(answer api.Answer) error
	// decode returns the decode leg. answer is prefill's, empty where decode does not wait for it.
	decode func(t *Transfer, answer api.Answer) decodeLeg
	// wholeAnswer returns the whole answer when prefill's was that already; nil: it never is.
	wholeAnswer func(t *Transfer, answer api.Answer) []byte
	// TransferFault reports whether an engine's error says that the transfer failed.
	// nil: engines do not say, and any failure of decode may be one.
	TransferFault func(body []byte) bool
}

// PairsTake reports whether pairs take requests of an API.
func (c *Connector) PairsTake(d *api.Dialect) bool {
	return c.Pairs && d.Split && (c.Dialects == nil || slices.Contains(c.Dialects, d))
}

// Takes reports whether a decode server takes requests of an API, in a pair or by itself.
func (c *Connector) Takes(d *api.Dialect) bool { return c.Aggregated || !d.Split || c.PairsTake(d) }

// byName has the connectors by the names that pools.Connectors lists: the most usual first, as each request asks for
// its servers' several times.
var byName = []struct {
	name string
	*Connector
}{
	{"nixl", nixl},
	{"sglang", sglang},
	{"aggregated", &Connector{Aggregated: true}},
	{"mooncake", mooncake},
	{"offload", offload},
	{"p2p-nccl", nccl},
	{"store", store},
	{"trtllm", trtllm},
	{"llmd-sidecar", sidecar},
}

// named returns a connector by its name, nil if there is none.
func named(name string) *Connector {
	for i := range byName {
		if byName[i].name == name {
			return byName[i].Connector
		}
	}
	return nil
}

// Of returns the connector of a server.
func Of(s *pools.Server) *Connector {
	c := named(s.Connector())
	switch {
	case c == sidecar && !s.ServesAlone(): // SGLang
		return sidecarOfSGLang
	case c == sglang && !s.MeetsAnywhere():
		return sglangBefore22
	}
	return c
}
