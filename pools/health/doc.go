// Package health finds out how servers are. A prober asks each whether it is well, which
// models it serves, what it is and how loaded it is; a probe request, one token of the
// gateway's own, proves a server whose breaker wants proof. What they find they report to
// the server, which package pools keeps and chooses by. cmd starts it with Watch; pd asks it
// whether an address still takes connections.
package health
