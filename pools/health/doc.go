// Package health finds out what state servers are in. A prober asks each whether it is healthy,
// which models it serves, which engine it is and how loaded it is; a probe request, a
// generation of one token on the gateway's own account, proves a server whose breaker is open.
// What they find they report to the server, which package pools keeps and chooses by. cmd
// starts it with Watch; pd asks it whether an address still takes connections.
package health
