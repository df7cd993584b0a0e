// Package pd is what happens to one request: it waits, a pair of servers is
// chosen and claimed for it, prefill runs on one, the hand-off travels to the
// other, and decode's first content event comes back. Up to that event
// everything may be retried elsewhere; after it the stream is relayed and its
// end is judged.
//
// Orchestrator.Run takes these steps in order. What a pair costs (pd/cost) and which request is
// next (pd/order) are computed without I/O. Bodies stay bytes: api.Body finds the fields that
// are read and replaces those that must change; everything else reaches the engine as the
// client wrote it.
package pd
