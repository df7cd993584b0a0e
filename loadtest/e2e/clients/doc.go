// Package clients proves the gateway with the clients that people point at it, unmodified and in
// pinned versions: the official SDKs, LiteLLM and its proxy, agents' frameworks, and a coding
// agent that runs tools. Each does what it is for, on every API that it speaks, and must raise
// its own class for each error. The engines behind the gateway prefill and decode in pairs and
// check each hand-off. `make e2e-clients` prints the table of clients and APIs; with -short,
// part of `make e2e`, LiteLLM and the agents' SDK are left out, which are large or slow.
// TestRecord with -record writes down what the coding agent sends.
package clients
