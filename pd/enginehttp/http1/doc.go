// Package http1 is an HTTP/1.1 client for streams: a RoundTripper that costs a stream no goroutine and no
// read buffer, and a request one write.
//
// The goroutine that calls RoundTrip writes the request and reads the answer; whoever reads the body reads
// the socket, into the buffer that it gave. Chunks are taken apart in that buffer. A buffer is borrowed for
// the head of an answer, and given back when what came behind the head has been read. One goroutine more is
// started only for a request that is too long for the socket's buffer, until it is sent: an engine may
// answer before it has read all of it. A body of which much is to come can be followed: a loop reads it, with all others
// that are followed, and calls its owner for each piece.
//
// It is stricter than net/http about what servers send (ProtocolError): no line may end in a bare LF or go on
// in the next one, an answer is either chunked or has one length, and nothing may follow it. Cut short, an
// answer ends in io.ErrUnexpectedEOF, or in what the connection failed with, and never in io.EOF. It does
// not decompress, follow proxies, speak HTTP/2, switch protocols or send trailers. The tests beside it run
// the same conversations with net/http, and list what is meant to differ.
//
// A request goes out again only where net/http would send it again: on another connection, when one that was
// kept had been closed by the server, nothing of an answer came, and the request may be repeated or nothing
// of it was written. Before a kept connection is used the kernel is asked whether it is still open, so that
// this happens seldom.
package http1
