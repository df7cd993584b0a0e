// Package order says which request is served next, and where. It is pure: what the
// servers are like and what a request would cost on each of them comes in as numbers,
// and nothing here starts, locks, or reads a clock. The gateway and the policy
// simulator call the same code.
//
// Servers.Best binds one request at once. Order keeps requests and binds each when
// its best prefill server is about to be free. Both minimise the same sum, Terms, in
// seconds, over all pairs and over decode servers alone.
//
// # How long a request waits
//
// Of every 1/OverdueShare turns (50) one goes to the request that came first of those that are
// overdue, in any class and for any objective. It keeps that turn while the server that is best
// for it is busy: no other request gets it. While another server is free, it waits for the busy
// one no longer than any other request would (Servers.Best). So a request whose prefill takes
// T seconds on the server that is best for it goes, whatever else comes, after at most
//
//	overdue + (k+1) (50 tau + B)    seconds
//
// overdue is 20 s + 2 T, and at most half of Patience; k the requests that came before it
// and are overdue as well; tau the time between two turns, the mean prefill over
// the number of servers when all are busy; B the longest time for which one turn keeps a
// server busy, 0.1 s and the longest prefill. Where decode lacks room for its prompt, the
// time comes on top until the sequences of one decode server have ended: room is kept for
// it there. T is what differs between short prompts and long ones, so that the bound of a
// decile of prompt lengths is that of its longest prompt.
package order
