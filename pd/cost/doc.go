// Package cost says what a pair of servers costs a request, in seconds: how long it waits,
// prefills, transfers KV and steps there, and what others pay for it. Model turns
// Candidates, which pd fills in from the fleet and the simulator from its own, into the
// numbers that package order compares; Links learns what transfers take.
//
// It is pure: values and arithmetic, no servers, no network, no clock of its own. pd and
// loadtest/policy import it.
package cost
