// Package replicate shares what the sources of kvstate know between replicas, through Redis:
// a snapshot of each source, which makes a replica that starts warm in seconds, and the
// deltas of engines in connect mode, which one elected replica receives for all (receiver.go).
//
// kvstate writes deltas and snapshots and applies them, under its own lock; this package
// carries them, and decides which replica writes and which receives (pools/election). Without Redis
// routing goes on from memory. cmd imports it.
package replicate
