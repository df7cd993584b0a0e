// Package calibrate measures from outside what one server can do: prefill time by
// length, decode step by batch and context, the smallest step, the largest concurrency
// within an ITL, and the room for KV. It sends real requests, within a budget of
// tokens, and wants the server to itself.
package calibrate
