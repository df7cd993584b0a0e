// Package retry bounds the harm of trying requests again: Budget bounds how many legs are tried
// again, so that a failing pool is not buried under them, and Quarantine holds back a request
// that was in flight on two servers when they died, so that it does not kill server by server.
//
// It knows a request by its fingerprint, and servers by name. pd and gateway import it.
package retry
