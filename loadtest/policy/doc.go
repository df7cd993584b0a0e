// Package policy is the policy simulator behind `tandem-lab sim`: it replays a trace
// against a model of a prefill/decode cluster and compares how routing policies
// serve it. DESIGN.md beside this file says what is modelled, what gateways can
// know, and how the JSON report reads.
//
// Time is virtual. A run uses one goroutine and is repeatable: the same trace,
// scenario, policy and seed give the same outcome. Times are float64 seconds; where
// the gateway's code is asked, fleet.go turns them into its own.
//
// One run:
//
//	trace -> arrive (gateway.go) -> a Chooser binds, or a queueingChooser keeps (policy.go)
//	      -> prefillServer -> network -> decodeServer, decodeGroup -> Outcome
//	      and back: eventStream, gauges, notifyGateways -> what a gateway knows (View)
package policy
