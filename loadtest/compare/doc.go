// Package compare compares the gateway's own ways to choose on running processes: the
// simulated engines with their links, the gateway, and the load of a trace. The
// simulator (loadtest/policy) compares many more policies on far larger clusters; this
// shows whether the order that it predicts is the one that is there.
//
// Times are scaled: with a scale of 0.3 the engines take three tenths of the time of
// the hardware that they stand for, and the trace arrives as much faster. What the
// gateway and this machine need is not scaled, so it weighs more than in life.
package compare
