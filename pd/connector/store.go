package connector

import "github.com/tandem-gateway/tandem/pd/api"

// store is a KV store that all engines share: LMCache, a shared disk, a Mooncake store.
// Nothing is on the wire: prefill leaves the prompt's blocks there, and decode finds
// them, or computes the prompt, and does not say which.
var store = &Connector{
	Pairs: true, Aggregated: true,
	Prefill: func(t *Transfer) LegRequest { return LegRequest{Body: oneToken(t)} },
	decode:  func(t *Transfer, _ api.Answer) decodeLeg { return decodeLeg{request: t.legWith(), hasKV: true} },
}
