// Package advise says whether disaggregation is worth it for a given traffic: the
// cheapest prefill and decode servers for its busiest time, with the cheapest servers
// that do both beside them; and which parallel layout of the same GPUs has prompts computed
// soonest (layout.go).
//
//	log -> Traffic (traffic.go) -> classes of its busiest window
//	    -> mix.Problem, aggregated (aggregated.go) -> Advice
package advise
