// Package enginehttp is the HTTP client of engines: a transport for legs and probes whose errors
// say whether an engine may have read the request. pd decides by that whether an engine that is
// gone may have died of it; cmd makes the transport and gives it to pd and to what probes servers.
package enginehttp
