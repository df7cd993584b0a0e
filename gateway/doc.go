// Package gateway is the HTTP side of Tandem: it parses and admits a request,
// hands it to pd, relays the answer, and turns every failure into the error
// shape of the API that was called.
//
// Fiber is used as a server only, and with cmd this is the only package that
// imports it. Two of its habits shape the code: it reuses its buffers, so all
// that outlives the handler is copied out first, and it never notifies a handler
// that the client has left, so every request watches its own connection.
package gateway
