// Package chaos breaks things under load and looks what it costs the clients. It
// starts real processes (gateways, simulated engines, a Redis), puts toxiproxy
// where the network is to fail, sends an open loop of requests, and plays a
// scenario: a table of events (kill, hang, slow, cut, restart ...) and of checks.
//
// A new failure is a few lines in scenarios.go:
//
//	{
//		Name: "decode-killed", Title: "one of two decode servers is killed, and comes back",
//		Events: Events{At(2*s, Kill("decode-0")), At(5*s, Restart("decode-0"))},
//		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
//	},
//
// Each component that is named is started: prefill-0, prefill-1 ..., decode-0 ..., gateway-0
// ..., redis. A server that a network event names is reached through a proxy.
//
// Like the load generator the package imports none of the serving packages: it
// knows the gateway by its command line, its HTTP ports and its metrics.
package chaos
