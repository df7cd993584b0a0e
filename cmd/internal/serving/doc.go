// Package serving is the gateway as one process: its configuration, what wires the packages
// together, and the order in which it starts and ends. Both programs import it: tandem serves
// with it, tandem-lab shows it in its demo. Nothing of loadtest is in it; its tests are those
// of the whole gateway, in front of simulated engines, over real sockets.
package serving
