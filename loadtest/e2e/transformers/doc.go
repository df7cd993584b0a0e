// Package transformers drives the gateway with Hugging Face's transformers serve, an engine that
// nobody here wrote: on CPUs, with a model of two layers whose weights are random. Each test starts
// its own servers; `make e2e` brings what they need.
package transformers
