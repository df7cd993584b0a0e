// Package transcript keeps what the stream of an answer has said so far, so that another
// pair can continue it where the stream breaks: the token ids of prompt and answer as the
// engine reports them, or a chat's text where it reports none and the operator allows that.
// It says which requests can be continued at all, makes the request for the rest, and turns
// the chunks that come back into chunks of the stream that the client reads.
//
// All of it is pure: bytes in, bytes out. pd decides whether and where a stream is continued.
package transcript
