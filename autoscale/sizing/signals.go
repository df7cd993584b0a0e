package sizing

import "time"

// Signals are what the gateways together know of one model at one moment. Tokens of
// prompts count without those found in a cache. Offered is what clients asked for:
// what waits for capacity, and what was refused for lack of capacity, included.
type Signals struct {
	Age                time.Duration // of the oldest figure below
	Prompt             Series        // offered prompt tokens per second
	Output             Series        // offered output tokens per second, as predicted on arrival
	WaitingForCapacity int           `json:"Held"` // requests that wait because a role has no server
	KV                 Series        // tokens of KV that requests hold on decode servers

	PrefillBacklog float64 // prompt tokens that wait for a prefill server
	DecodeBacklog  float64 // predicted output tokens of requests that wait for room on a decode server

	PrefillSpeed float64 // prompt tokens per second of one server, at the lengths of now
	DecodeSpeed  float64 // output tokens per second of one server within the objective for ITL
	KVCapacity   float64 // tokens of KV of one decode server

	Prefill, Decode Pool
	ColdStart       time.Duration // from wanting a server to its first request
}

// Pool is the servers of one role. A server of both roles counts as decode.
type Pool struct {
	Ready, Pending int
	Convertible    int // of the ready: those that may prefill as well, when the others are busy
}
