package order

import "errors"

// Objective is what the choice of servers for a request is to optimise.
type Objective string

// The objectives. They share all formulas and differ in Weights.
const (
	Auto       Objective = "auto"       // Throughput for a request with a TTFT objective, else Latency
	Latency    Objective = "latency"    // least mean TTFT over all requests
	Throughput Objective = "throughput" // goodput: requests per server that meet their objectives
)

// Validate returns an error if the objective is none of the three.
func (o Objective) Validate() error {
	if o != Auto && o != Latency && o != Throughput {
		return errors.New("want auto, latency or throughput")
	}
	return nil
}

// Of returns the objective of a request with a TTFT objective of ttft seconds, 0 for none. Auto and
// the zero Objective become Throughput where there is one, else Latency.
func (o Objective) Of(ttft float64) Objective {
	switch {
	case o != Auto && o != "":
		return o
	case ttft > 0:
		return Throughput
	}
	return Latency
}

// Weights are how an objective weighs the terms of a request's cost, and its place in the order.
type Weights struct {
	// Decode is what one second of decoding costs, of the request and of those in its batch, in
	// seconds of TTFT. With 0 all requests would go to the nearest decode server, however full.
	Decode float64
	// Beyond is how much more a decode step counts as far as it is longer than those of the other decode
	// servers. One gap in a hundred is of the largest batches: with it the 99th percentile of gaps is hardly
	// more than where requests are spread evenly, and the mean time to the first token is what it is without
	// (docs/scheduling.md). 0 where batches may be filled.
	Beyond float64
	// Congestion is what one second of prefill costs each waiting request per prefill server, in
	// seconds. Under high load it keeps short prompts off the few servers that hold the prefixes
	// of long ones; minimising each request's own time alone does worse near saturation.
	Congestion float64
	// LateLast puts a request that can no longer meet its TTFT objective behind all others of its
	// class that still can.
	LateLast bool
}

// Weights returns the weights that did best over the shipped scenarios of the simulator; half or
// twice as much of each changes the means by some 2 %. Auto counts as Latency: call Of first.
func (o Objective) Weights() Weights {
	if o == Throughput {
		return Weights{Decode: 0.05, Congestion: 4, LateLast: true}
	}
	return Weights{Decode: 0.1, Beyond: 6, Congestion: 4}
}

// mostWaiting is how many waiting requests for each prefill server the price counts at most.
// Fewer cost the mean under overload, where the servers that hold a prefix must be kept for
// those that need it: with 1 it is 10 % longer, and 89 % where requests are bound on arrival.
// Above 24 nothing changes.
const mostWaiting = 24

// Price returns what one second of a request's prefill costs other requests, in seconds: one that
// is yet to arrive, and the waiting ones, of which there are so many for each prefill server.
func (w Weights) Price(waiting float64) float64 {
	return 1 + w.Congestion*min(waiting, mostWaiting)
}
