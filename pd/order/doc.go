// Package order says which request is served next, and where. It is pure: what the
// servers are like and what a request would cost on each of them comes in as numbers,
// and nothing here starts, locks, or reads a clock. The gateway and the policy
// simulator call the same code.
//
// Servers.Best binds one request at once. Order keeps requests and binds each when
// its best prefill server is about to be free. Both minimise the same sum, Terms, in
// seconds, over all pairs and over decode servers alone.
package order
