// Package scaling is the autoscaling simulator behind `tandem-lab sim --autoscale`: it
// replays a load of hours in virtual time against two pools that a scaling policy
// grows and shrinks, and compares what the policies cost and what they keep.
// DESIGN.md beside this file says what is modelled.
//
// The model is coarse on purpose: one queue before prefill, decode in ticks. Which
// server gets a request is loadtest/policy's matter; here all share one gateway.
// Of the serving code it knows autoscale's pure planner only.
//
//	trace -> load (load.go) -> queue -> prefill -> decode (cluster.go, decode.go)
//	every 15 s: view -> policy -> HPA (hpa.go) -> pods that start and drain (pool.go)
package scaling
