package chaos

import (
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// Faults that scenarios share.
var (
	answers500 = engine.Fault{Kind: engine.FaultStatus, Status: 500}
	answers503 = engine.Fault{Kind: engine.FaultStatus, Status: 503}
	hangs      = engine.Fault{Kind: engine.FaultHangBeforeHeaders}
	faultyLink = engine.Fault{Kind: engine.FaultSlowLink, Factor: 100}
)

// waitingElsewhere keeps the prefill servers so busy that requests wait, at the gateways
// that do not decide: clients of one that is killed lose their connections whichever decides.
var waitingElsewhere = Load{Gateways: []string{"gateway-1", "gateway-2"}, RPS: 60, Prompt: 2048, Output: 16, For: 10 * s}

// Components that scenarios name together.
var (
	engines       = []string{"prefill-0", "prefill-1", "decode-0", "decode-1"}
	allComponents = append([]string{"gateway-0"}, engines...)
)

// stopsTwice stops processes dead for four seconds, twice.
func stopsTwice(names ...string) Events {
	return Events{At(2*s, Hang(names...)), At(6*s, Continue(names...)), At(8*s, Hang(names...)), At(12*s, Continue(names...))}
}

// Scenarios are all of them.
var Scenarios = []Scenario{
	{
		Name: "prefill-killed", Title: "one of three prefill servers is killed while the others have queues",
		Peer:   "llm-d: 100 of 100 picks go to the dead one, 502 with an empty body",
		Fleet:  Fleet{Prefill: 3},
		Load:   Load{RPS: 40, Prompt: 2048, Output: 16},
		Events: Events{At(2*s, Kill("prefill-0")), At(5*s, Restart("prefill-0"))},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "decode-killed", Title: "one of two decode servers is killed, and comes back",
		Load:   Load{Output: 128},
		Events: Events{At(2*s, Kill("decode-0")), At(5*s, Restart("decode-0"))},
		Checks: Checks{NoErrors, Continued(1), RecoveredWithin(2 * s)},
	},
	{
		Name: "prefill-answers-500", Title: "one of two prefill servers answers 500 to everything",
		Peer:   "kthena: 11 of 20 requests lost",
		Events: Events{At(2*s, Break(answers500, "prefill-0"))},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "prefill-refuses", Title: "one of two prefill servers refuses connections",
		Peer:   "kthena: 7 of 20 requests lost",
		Events: Events{At(2*s, Network(Refusing, "prefill-0"))},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "decode-answers-503", Title: "one of two decode servers answers 503, with healthy metrics",
		Peer:   "llm-d: it keeps 26 to 50 % of the picks",
		Load:   Load{For: 10 * s},
		Events: Events{At(0, Break(answers503, "decode-0"))},
		Checks: Checks{NoErrors, MaxShare("decode-0", 0.1)},
	},
	{
		Name: "decode-answers-500", Title: "one of two decode servers answers 500 to everything, with a healthy /health",
		Events: Events{At(2*s, Break(answers500, "decode-0")), At(6*s, Repair("decode-0"))},
		Load:   Load{For: 12 * s},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "prefix-on-the-bad-server", Title: "the prefill server that holds the prefix of all requests answers 500",
		Peer:   "AIBrix: 12 of 12 and 20 of 20 requests lost",
		Fleet:  Fleet{KVEvents: true},
		Load:   Load{SharedPrefix: 1500},
		Events: Events{At(3*s, Break(answers500, Busiest("prefill")))},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "sglang-prefill-fails", Title: "both legs are under way at once, and one of two prefill servers answers 500",
		Peer:   "SGLang's gateway: the other leg waits, up to 1800 s (its timeout)",
		Fleet:  Fleet{Connector: "sglang"},
		Events: Events{At(2*s, Break(answers500, "prefill-0"))},
		Checks: Checks{NoErrors, WorstTTFT(2 * s), RecoveredWithin(2 * s)},
	},
	{
		Name: "sglang-prefill-killed", Title: "the same, and it is killed",
		Peer:   "SGLang's gateway: the same timeout",
		Fleet:  Fleet{Connector: "sglang"},
		Events: Events{At(2*s, Kill("prefill-0")), At(5*s, Restart("prefill-0"))},
		Checks: Checks{NoErrors, WorstTTFT(2 * s), RecoveredWithin(2 * s)},
	},
	{
		Name: "prefill-hangs", Title: "one of two prefill servers stops dead with its connections open",
		Load:   Load{For: 15 * s},
		Events: Events{At(2*s, Hang("prefill-0")), At(10*s, Continue("prefill-0"))},
		Checks: Checks{NoErrors, WorstTTFT(8 * s), RecoveredWithin(6 * s)},
	},
	{
		Name: "decode-hangs", Title: "one of two decode servers stops dead in the middle of its streams",
		Load:   Load{For: 15 * s, Output: 128},
		Events: Events{At(2*s, Hang("decode-0")), At(10*s, Continue("decode-0"))},
		Checks: Checks{NoErrors, Continued(1), RecoveredWithin(6 * s), WorstAnswer(8 * s)},
	},
	{
		Name: "prefill-zombie-hangs", Title: "a prefill server accepts work and never answers, with a healthy /health",
		Load:   Load{For: 18 * s},
		Events: Events{At(2*s, Break(hangs, "prefill-0")), At(12*s, Repair("prefill-0"))},
		Checks: Checks{NoErrors, WorstTTFT(10 * s), RecoveredWithin(8 * s)},
	},
	{
		Name: "gateway-stopped", Title: "the gateway stops dead for four seconds, twice, while it awaits the answers of the only decode server",
		Fleet:  Fleet{Decode: 1},
		Load:   Load{For: 15 * s},
		Events: append(Events{At(0, Network(Slow(700*time.Millisecond), "decode-0"))}, stopsTwice("gateway-0")...),
		Checks: Checks{NoErrors, RecoveredWithin(6 * s)},
	},
	{
		Name: "engines-stopped", Title: "all engines stop dead for four seconds, twice",
		Load:   Load{For: 15 * s},
		Events: stopsTwice(engines...),
		Checks: Checks{NoErrors, RecoveredWithin(6 * s)},
	},
	{
		Name: "all-starved", Title: "gateway and engines get half a hundredth of a CPU each",
		Load:   Load{For: 15 * s, RPS: 4, Output: 16},
		Events: Events{At(2*s, Throttle(0.005, allComponents...)), At(12*s, Unthrottle(allComponents...))},
		Checks: Checks{NoErrors},
	},
	{
		Name: "lone-pair-slow", Title: "the only decode server takes 2.5 s to answer anything, its probes as well",
		Fleet:  Fleet{Prefill: 1, Decode: 1},
		Load:   Load{For: 15 * s, RPS: 10},
		Events: Events{At(2*s, Network(Slow(2500*time.Millisecond), "decode-0")), At(12*s, Restore("decode-0"))},
		Checks: Checks{NoErrors},
	},
	{
		Name: "streams-at-once", Title: "1,000 streams open within half a second",
		Load:   Load{RPS: 2000, For: 500 * time.Millisecond, Prompt: 64, Output: 512},
		Events: Events{At(0, Count("opened"))},
		Checks: Checks{NoErrors},
	},
	{
		Name: "network-resets", Title: "the network to a decode server resets its connections",
		Events: Events{At(2*s, Network(Resetting, "decode-0")), At(5*s, Restore("decode-0"))},
		Checks: Checks{NoErrors, RecoveredWithin(2 * s)},
	},
	{
		Name: "network-blackholed", Title: "the network to a prefill server swallows all bytes",
		Load:   Load{For: 15 * s},
		Events: Events{At(2*s, Network(Blackholed, "prefill-0")), At(9*s, Restore("prefill-0"))},
		Checks: Checks{NoErrors, WorstTTFT(8 * s), RecoveredWithin(6 * s)},
	},
	{
		Name: "network-slow", Title: "the network to a decode server gets 300 ms slower",
		Events: Events{At(2*s, Network(Slow(300*time.Millisecond), "decode-0"))},
		Checks: Checks{NoErrors},
	},
	{
		Name: "network-cuts", Title: "the network to a decode server cuts each connection after 2,000 bytes",
		Events: Events{At(2*s, Network(CutAfter(2000), "decode-0")), At(5*s, Restore("decode-0"))},
		Checks: Checks{NoErrors, Continued(1)},
	},
	{
		Name: "all-prefill-gone", Title: "all prefill servers are killed, and come back",
		Events: Events{At(2*s, Kill("prefill-0", "prefill-1")), At(5*s, Restart("prefill-0", "prefill-1"))},
		Checks: Checks{NoErrors, Metric(1, 1000, "tandem_aggregated_requests_total", `reason="no_prefill"`)},
	},
	{
		Name: "worst-minute", Title: "all prefill servers answer 503: retries stay within their budget",
		Load:   Load{RPS: 50},
		Events: Events{At(2*s, Break(answers503, "prefill-0", "prefill-1")), At(6*s, Repair("prefill-0", "prefill-1"))},
		Checks: Checks{NoErrors, Metric(1, 0.2*400+10, "tandem_retries_total")},
	},
	{
		Name: "server-drained", Title: "a decode server is marked as draining under load",
		Events: Events{At(2*s, Drain("decode-0"))},
		Checks: Checks{NoErrors, RecoveredWithin(3 * s)},
	},
	{
		Name: "link-sick", Title: "KV comes to one of two decode servers a hundred times slower, and as fast as before again",
		Fleet: Fleet{Prefill: 1, Gateway: []string{"--enforce-disaggregation"}},
		Load:  Load{RPS: 6, For: 110 * s, Prompt: 1024, Output: 8},
		Events: Events{
			At(5*s, Break(faultyLink, "decode-0")), At(10*s, Count("left")),
			At(25*s, Count("healed")), At(25*s, Repair("decode-0")),
			At(95*s, Count("back")), At(109*s, Count("end")),
		},
		Checks: Checks{NoErrors, Share("decode-0", "left", "healed", 0, 0.1), Share("decode-0", "back", "end", 0.2, 1)},
	},
	{
		Name: "redis-killed", Title: "Redis is killed under three gateways, and comes back empty",
		Fleet:  Fleet{Gateways: 3, Redis: true},
		Events: Events{At(2*s, Kill("redis")), At(5*s, Restart("redis"))},
		Checks: Checks{NoErrors, RecoveredWithin(s)},
	},
	{
		Name: "redis-hangs", Title: "Redis stops dead under three gateways",
		Fleet: Fleet{Gateways: 3, Redis: true},
		Load:  Load{For: 10 * s},
		// Longer than what replicas reported before it counts, so that they know nothing of
		// each other.
		Events: Events{At(2*s, Hang("redis")), At(8*s, Continue("redis"))},
		Checks: Checks{NoErrors, RecoveredWithin(s)},
	},
	{
		Name: "decider-killed", Title: "the gateway that decides for three is killed while requests wait for their turn",
		Fleet:  Fleet{Gateways: 3, Redis: true},
		Load:   waitingElsewhere,
		Events: Events{At(3*s, Kill("gateway-0"))},
		// In the end one of the two that are left follows the other.
		Checks: Checks{NoErrors, FellBackWithin(100 * time.Millisecond), Metric(1, 1, "tandem_leader_followed")},
	},
	{
		Name: "decider-hangs", Title: "the gateway that decides for three stops dead with its connections open, and goes on",
		Fleet:  Fleet{Gateways: 3, Redis: true},
		Load:   waitingElsewhere,
		Events: Events{At(3*s, Hang("gateway-0")), At(6*s, Continue("gateway-0"))},
		Checks: Checks{NoErrors, FellBackWithin(250 * time.Millisecond), Metric(2, 2, "tandem_leader_followed")},
	},
	{
		Name: "replica-cut-off", Title: "one of three gateways is cut off from Redis for a minute",
		Fleet:  Fleet{Prefill: 4, Gateways: 3, Redis: true},
		Load:   Load{RPS: 40, For: 70 * s},
		Events: Events{At(5*s, Network(Blackholed, "gateway-0>redis")), At(65*s, Restore("gateway-0>redis"))},
		// The load ends five seconds after the cut: by then they share again.
		Checks: Checks{NoErrors, RecoveredWithin(s), Balanced("prefill", 1.3), Metric(3, 3, "tandem_replicas_connected")},
	},
}
