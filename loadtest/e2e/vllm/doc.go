// Package vllm proves the gateway in front of the engine itself: vLLM's servers on CPUs,
// which hand KV over by NIXL (UCX, in the machine's memory), publish KV events over ZMQ
// and serve a model small enough for two cores. Run it with `make vllm`, which installs
// them once (some 6 GB, so that `make e2e` is without).
package vllm
