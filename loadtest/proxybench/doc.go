// Package proxybench measures what HTTP proxies cost between clients and engines: this gateway,
// other routers and plain proxies, one at a time, in the same run, in front of the same mock engines.
//
// Three processes take part: the mock engines (Engines), the proxy, and the load (Run, in the process
// that asked for it). The engines answer at once and hold each leg to what a real engine would need of
// it: a hand-off is issued once and read once, the two legs of a pair carry the same prompt, every
// event and answer bears the mark of its request. So a proxy that loses, repeats or swaps anything has
// errors in its row, and no figure.
//
// A round measures every proxy once, nginx first and last. What the machine did meanwhile shows in how
// far the two differ: a measure of a round in which they differ by more than Config.Steady is dropped,
// and the report says so. CPU is that of the proxy's process tree by the processes' clocks, memory its
// proportional set size (PSS) without files that are mapped. Absolute figures are those of one machine;
// what travels are the ratios to nginx.
//
// cmd/tandem-lab imports it (bench-proxy).
package proxybench
