// Package e2e proves the gateway with parts of other projects: it starts real
// processes (llm-d-inference-sim as the engines, a Jaeger for the traces, bin/tandem
// in front) and drives them with the official OpenAI SDKs for Go, for Node.js and for Python,
// and Anthropic's for Python.
//
// llm-d-inference-sim returns the same hand-off for every request and does not look
// at the one it gets, so it cannot show that decode was told the right prefill
// server. The same calls therefore also run against `tandem-lab engine`, which can, and
// which breaks a stream on request.
//
// Package envoy has a real Envoy that asks the gateway's endpoint picker.
//
// Kubernetes is real as well: package cluster starts a control plane, in which package
// deployed runs deploy/kustomize, its pods being processes. Package loop, run by
// `make keda`, adds KEDA's operator; module keda runs KEDA's scalers alone. Package vllm,
// run by `make vllm`, has the engine that most people run in place of its simulation.
//
// The package is a module of its own, so that the SDK does not become a dependency
// of the gateway, and all of it is tests: run them with `make e2e`, which first
// builds the parts into .cache/e2e.
package e2e
