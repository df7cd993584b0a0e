// Package autoscale decides how many servers of each role and kind of hardware a model
// should have, and publishes it. It reads the fleet (pools), adds up what the gateways
// measured (demand), sizes both roles (sizing, pure), chooses the hardware (mix, pure), and
// says which servers go when fewer are wanted. Replicas meet in Redis, and one decides.
package autoscale
