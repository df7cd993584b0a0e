package order

import "errors"

// Objective is what requests are served for.
type Objective string

// The objectives. All formulas are the same; their weights differ.
const (
	Auto       Objective = "auto"       // throughput for a request whose first token is due at some time, else latency
	Latency    Objective = "latency"    // the time to the first token, of all
	Throughput Objective = "throughput" // goodput: requests per server that meet their objectives
)

// Validate reports what is wrong with the objective, nil if nothing.
func (o Objective) Validate() error {
	if o != Auto && o != Latency && o != Throughput {
		return errors.New("want auto, latency or throughput")
	}
	return nil
}

// Of is what a request is served for whose objective for the first token is so many seconds,
// 0 is none: for Auto, which the zero Objective is too, Throughput where it has one, else
// Latency.
func (o Objective) Of(ttft float64) Objective {
	switch {
	case o != Auto && o != "":
		return o
	case ttft > 0:
		return Throughput
	}
	return Latency
}

// Weights are what an objective makes of a request's cost and of its turn.
type Weights struct {
	// Decode is what a second of decoding is worth, of the request itself and of those in
	// its batch, in seconds to the first token. Without it all go to the nearest decode
	// server, however full.
	Decode float64
	// Congestion is what a second of prefill costs waiting requests, for each of them per
	// prefill server. It keeps short prompts off the few servers that hold long ones'
	// prefixes when load is high; greedy minimisation of each request's own time loses
	// near saturation.
	Congestion float64
	// LateLast serves a request whose objective for the first token cannot be met any
	// more behind all of its class that can still meet theirs.
	LateLast bool
}

// Weights are those that did best over the shipped scenarios of the simulator, where half
// or twice as much of each changes the means by some 2 %. Auto has none before Of has said
// what it is, and counts as Latency.
func (o Objective) Weights() Weights {
	if o == Throughput {
		return Weights{Decode: 0.05, Congestion: 4, LateLast: true}
	}
	return Weights{Decode: 0.1, Congestion: 4}
}

// mostWaiting is how many waiting requests for each prefill server the price counts at most.
// Fewer cost the mean under overload, where the servers that hold a prefix must be kept for
// those that need it: with 1 it is 10 % longer, and 89 % where requests are bound on arrival.
// Above 24 nothing changes.
const mostWaiting = 24

// Price is what a second of a request's prefill costs others, in seconds: one that is yet to
// come, and those that wait, of which there are so many for each prefill server.
func (w Weights) Price(waiting float64) float64 {
	return 1 + w.Congestion*min(waiting, mostWaiting)
}
