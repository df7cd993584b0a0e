// Package kvstate knows which server holds which KV blocks. It answers, without a
// network call, how many leading tokens of a prompt each server holds and in which
// tier.
//
// Engines publish KV events; a Source takes the events of one server (or one
// data-parallel rank of it) as bytes and keeps what the engine holds as a tree of
// blocks. Each block has a Hash of our own over its tokens and all before it, so
// engines with different hash algorithms, seeds and block sizes share one Index. The
// engine's hashes are only keys, for parents and removals.
//
// Match hashes a prompt and finds the longest prefix of all servers at once. It takes
// no lock and waits for no writer.
//
// A server is named by its string ID. Subpackage zmqsub brings the events.
package kvstate
