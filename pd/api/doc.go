// Package api is what clients send and receive, as bytes: the fields of a JSON
// body and edits of them (Body, Value, Edit), the APIs that Tandem serves (Dialect), the
// events of their streams (EventReader, Meaning, Chunk), usage, and errors in the shape of
// each API. What is not edited stays to the byte as it was written.
//
// All of it is pure. gateway parses requests with it; pd, pd/connector, pd/transcript and
// pd/messages read and edit bodies with it.
package api
