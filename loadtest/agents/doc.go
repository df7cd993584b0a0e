// Package agents measures how well a gateway keeps agents' prompts where their KV is: on
// simulated engines and the gateway's own process, over the three APIs that agents speak,
// with tools, their results and sub-agents.
//
// What engines report as cached (usage) is compared with an oracle that runs over the log of
// the same requests, with the exact tokens of their prompts and caches of the same size
// (oracle.go says what it is). Where a later turn went elsewhere than the one before although
// that server held as much of it as any, it has changed its server without need.
//
// A run takes this way: workload.go (sessions, the same for every API, policy and cache) ->
// chat.go, messages.go, responses.go (bodies) -> prompts.go (their exact tokens) ->
// cluster.go (engines and gateway) -> run.go (sessions take their turns) -> oracle.go ->
// report.go. Times are scaled as the engines' are; what the gateway and this machine need is
// not.
package agents
