package pd

// store is a KV store that all engines share: LMCache, a shared disk, a Mooncake store.
// Nothing is on the wire: prefill leaves the prompt's blocks there, and decode finds
// them, or computes the prompt, and does not say which.
var store = &connector{
	pairs: true, alone: true,
	prefill: func(t *transfer) legRequest { return legRequest{body: oneToken(t)} },
	decode:  func(t *transfer, _ []byte) handed { return handed{leg: t.legWith(), kept: true} },
}
