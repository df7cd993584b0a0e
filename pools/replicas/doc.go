// Package replicas lets gateways that share a Redis report to each other what they have in
// flight on the servers, so that they do not all send to the one that looks idle. The fleet
// (package pools) adds what is received here to its own work. cmd starts it.
package replicas
