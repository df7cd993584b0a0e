// Package picker is an endpoint picker of the Gateway API Inference Extension: Envoy, or what is
// built on it, asks over ext_proc to which server each request goes, sends it there itself, and
// shows the answer as it passes by. What is asked and how it is decided is the gateway's: this
// package only speaks the protocol (docs/proposals/004-endpoint-picker-protocol of
// kubernetes-sigs/gateway-api-inference-extension, August 2026).
//
// It is the only package that imports go-control-plane. cmd starts it.
package picker
