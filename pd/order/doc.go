// Package order decides which request is served next, and on which servers. It is pure: the
// state of the servers and what a request would cost on each of them come in as numbers; the
// package starts no goroutine, takes no lock and reads no clock. The gateway and the policy
// simulator call the same code.
//
// Servers.Best chooses for one request at once. Order keeps requests that wait, and chooses for
// each when the prefill server that is best for it is about to be free. Both minimise the same
// sum, Terms, in seconds, over all pairs and over all decode servers that could compute the
// prompt alone.
//
// # How long a request waits
//
// One of every 1/OverdueShare turns (50) goes to the oldest request that is overdue, whatever its
// class and objective. The request keeps that turn while the server that is best for it is busy:
// no other request gets it. While another server is free, it waits for the busy one no longer
// than any other request would (Servers.Best), and four times as long where that server computes its
// beginning for another request. So a request whose prefill takes T seconds on the
// server that is best for it goes, whatever else arrives, after at most
//
//	overdue + (k+1) (50 tau + B)    seconds
//
// where overdue is 20 s + 2 T, and at most half of Patience; k is the number of requests that
// came before it and are overdue too; tau is the time between two turns, which is the mean
// prefill over the number of servers when all are busy; and B is the longest time for which one
// turn keeps a server busy: 0.02 s, or a step of the server where it takes longer, plus the
// longest prefill. Where decode will lack KV room when the prompt is computed, add the time until
// the sequences of one decode server have ended: it is kept for the request. Only T differs
// between short and long prompts, so the bound of a decile of prompt lengths is that of its
// longest prompt.
package order
