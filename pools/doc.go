// Package pools knows which servers exist, what state they are in, and whether they may
// take one more request.
//
// A server is one addressable engine or one data-parallel rank of it; a pool is
// the servers of one role and model. The Fleet holds an immutable snapshot of
// all servers, swapped on reload. What changes about a server between reloads
// (health, breakers, work in flight, scraped load) lives beside the snapshot and
// survives it.
//
// A caller picks a server from Candidates, takes a place on it with Claim, and
// ends the Lease in two steps, each of which counts once: RecordResult at the first
// content event, Release when the request has left the server.
package pools
