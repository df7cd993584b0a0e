// Package sizing says how many prefill and how many decode servers a model's traffic needs,
// and what one server can do (Capacity).
//
// The decision is Planner.Plan, a pure function from Signals, what the gateways know of one
// model at one moment, and the Memory of earlier decisions to a Plan: the wanted servers of
// both roles, each with its reason. Nothing here starts, waits or reads a clock, so the same
// code is run by the simulator (loadtest/scaling) and disputed in text files
// (testdata/want). autoscale, its planner of hardware (mix) and the simulators import it.
package sizing
