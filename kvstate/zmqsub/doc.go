// Package zmqsub brings the KV events of engines to kvstate over ZMQ.
//
// A Subscriber has one SUB socket for one source and a goroutine that owns it, and that waits for it as for a
// connection of Go: hundreds of them hold no threads. It connects to an engine in bind mode (vLLM, SGLang), or binds for one in connect mode;
// either way the socket names the source, whatever the topic says. Batches that were
// missed are asked for over a DEALER socket while live messages wait in the SUB
// socket's queue, which is short, and behind it in the engine's: when that overflows,
// the gap shows and is filled in the same way. Feeds that have a few messages at a time are looked at together, every 10 ms.
//
// This is the only package of the gateway that needs cgo.
package zmqsub
