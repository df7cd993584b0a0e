// Package peers lets gateways that share a Redis find each other's admin ports and ask them, so that
// each can answer an operator for all. Nothing that a client waits for goes through it. cmd starts it
// and gives it to the admin port.
package peers
