// Package replicas lets gateways that share a Redis report to each other what they have in
// flight on the servers, so that they do not all send to the one that looks idle. The fleet
// (package pools) adds what is received here to its own work. To the replica that decides for all they
// report it also over the connection of pd/leader, at once (Stream, Receive). cmd starts it.
package replicas
