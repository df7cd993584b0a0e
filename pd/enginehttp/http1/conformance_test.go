package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// script is what a server answers to the first request on its first connection. It answers all others with
// plainAnswer.
type script struct {
	name   string
	method string // GET if empty
	answer string
	// differs says why this client is meant to come to something else than net/http: nothing, if empty.
	differs string
	// unasked: more follows behind the answer, which only a socket can be asked for.
	unasked bool
	// waits: net/http waits for more before it fails.
	waits bool
}

const (
	ok          = "HTTP/1.1 200 OK\r\n"
	chunked     = ok + "Transfer-Encoding: chunked\r\n\r\n"
	plainAnswer = ok + "Content-Length: 2\r\n\r\nok"
)

const (
	bareLF    = "a line ends in CRLF: what reads LF as an end otherwise than others do is how answers are smuggled"
	obsFold   = "a header in two lines is obsolete, and read in different ways"
	oneFrame  = "an answer says once where it ends"
	shortHead = "heads are bounded by 64 KiB instead of 10 MiB, with all 1xx before them"
	protocols = "nothing but HTTP/1.0 and 1.1 was asked for"
	ourStatus = "a status has three digits from 100 on, behind one space"
	noPadding = "sizes of chunks are not padded"
	noSpaces  = "a header's name is a token"
	noPragma  = "headers stay as they came"
	announced = "trailers that were not announced are dropped"
	noRubbish = "what is dropped is proved valid all the same"
)

var scripts = []script{
	{name: "length", answer: ok + "Content-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"},
	{name: "length 0", answer: ok + "Content-Length: 0\r\n\r\n"},
	{name: "equal lengths", answer: ok + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "length with leading zeros", answer: ok + "Content-Length: 005\r\n\r\nhello"},
	{name: "length with spaces around", answer: ok + "Content-Length: \t 5 \t\r\n\r\nhello"},
	{name: "different lengths", answer: ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"},
	{name: "list of equal lengths", answer: ok + "Content-Length: 5, 5\r\n\r\nhello"},
	{name: "negative length", answer: ok + "Content-Length: -1\r\n\r\nhello"},
	{name: "signed length", answer: ok + "Content-Length: +5\r\n\r\nhello"},
	{name: "hexadecimal length", answer: ok + "Content-Length: 0x5\r\n\r\nhello"},
	{name: "two numbers", answer: ok + "Content-Length: 5 5\r\n\r\nhello"},
	{name: "empty length", answer: ok + "Content-Length:\r\n\r\nhello"},
	{name: "length that overflows", answer: ok + "Content-Length: 92233720368547758070\r\n\r\nhello"},
	{name: "chunks", answer: chunked + "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"},
	{name: "chunks, large", answer: chunked + "12c00\r\n" + strings.Repeat("0123456789", 7680) + "\r\n0\r\n\r\n"},
	{name: "no chunk", answer: chunked + "0\r\n\r\n"},
	{name: "many chunks of a byte", answer: chunked + strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n"},
	{name: "chunk sizes in capitals with zeros", answer: chunked + "00A\r\n0123456789\r\n000\r\n\r\n"},
	{name: "encoding in capitals", answer: ok + "TRANSFER-ENCODING: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"},
	{name: "chunk extensions", answer: chunked + "5;a=b;c=\"d e\"\r\nhello\r\n5;\r\nworld\r\n0;end\r\n\r\n"},
	{name: "a space before a chunk extension", answer: chunked + "5 ;x\r\nhello\r\n0\r\n\r\n"},
	{name: "a padded chunk size", answer: chunked + "5 \r\nhello\r\n0\r\n\r\n", differs: noPadding},
	{name: "a chunk extension with a control character", answer: chunked + "5;\x00\r\nhello\r\n0\r\n\r\n", differs: noRubbish},
	{name: "trailers", answer: ok + "Transfer-Encoding: chunked\r\nTrailer: X-Usage, x-other\r\n\r\n1\r\nx\r\n0\r\nx-usage: 5\r\n\r\n"},
	{name: "trailers that were not announced", answer: chunked + "1\r\nx\r\n0\r\nX-Usage: 5\r\n\r\n", differs: announced},
	{name: "a trailer that frames", answer: ok + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n1\r\nx\r\n0\r\n\r\n"},
	{name: "a trailer without a name", answer: chunked + "1\r\nx\r\n0\r\n: 5\r\n\r\n"},
	{name: "a trailer without a colon", answer: chunked + "1\r\nx\r\n0\r\nnothing\r\n\r\n"},
	{name: "a trailer that goes on", answer: chunked + "1\r\nx\r\n0\r\nA: b\r\n c\r\n\r\n", differs: obsFold},
	{name: "trailers of 1 MB", answer: chunked + "1\r\nx\r\n0\r\n" + strings.Repeat("A: "+strings.Repeat("b", 1000)+"\r\n", 1000) + "\r\n"},
	{name: "trailers that end in LF", answer: chunked + "1\r\nx\r\n0\r\nA: b\n\r\n", waits: true},
	{name: "a chunk with a CR in its size", answer: chunked + "5\rx\nhello\r\n0\r\n\r\n"},
	{name: "a chunk size that ends in LF", answer: chunked + "5\nhello\r\n0\r\n\r\n"},
	{name: "a chunk that ends in LF", answer: chunked + "5\r\nhello\n0\r\n\r\n"},
	{name: "a chunk longer than its size", answer: chunked + "4\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk shorter than its size", answer: chunked + "6\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk size with 0x", answer: chunked + "0x5\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk size with a sign", answer: chunked + "+5\r\nhello\r\n0\r\n\r\n"},
	{name: "a negative chunk size", answer: chunked + "-5\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk size behind a space", answer: chunked + " 5\r\nhello\r\n0\r\n\r\n"},
	{name: "an empty chunk size", answer: chunked + "\r\nhello\r\n0\r\n\r\n"},
	{name: "an extension without a size", answer: chunked + ";a=b\r\nhello\r\n0\r\n\r\n"},
	{name: "16 digits of a chunk size", answer: chunked + "0000000000000005\r\nhello\r\n0\r\n\r\n"},
	{name: "17 digits of a chunk size", answer: chunked + "00000000000000005\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk of 16 EiB", answer: chunked + "ffffffffffffffff\r\nhello\r\n0\r\n\r\n"},
	{name: "a chunk extension of 1 MB", answer: chunked + "5;" + strings.Repeat("a", 1<<20) + "\r\nhello\r\n0\r\n\r\n"},
	{name: "much beside the data", answer: chunked + strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\nx\r\n", 40) + "0\r\n\r\n"},
	{name: "length and chunks", answer: ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", differs: oneFrame},
	{name: "gzip", answer: ok + "Transfer-Encoding: gzip\r\n\r\nhello"},
	{name: "gzip in chunks", answer: ok + "Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "identity", answer: ok + "Transfer-Encoding: identity\r\n\r\nhello"},
	{name: "no encoding at all", answer: ok + "Transfer-Encoding:\r\n\r\nhello"},
	{name: "xchunked", answer: ok + "Transfer-Encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "chunked behind a vertical tab", answer: ok + "Transfer-Encoding: \vchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "two encodings", answer: ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "1.0 in chunks", answer: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", differs: oneFrame},
	{name: "until the end", answer: ok + "\r\nhello"},
	{name: "until the end, said", answer: ok + "Connection: close\r\n\r\nhello"},
	{name: "closes with a length", answer: ok + "Connection: close\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "closes among others", answer: ok + "Connection: x, CLOSE\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "closes in chunks", answer: ok + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
	{name: "keeps", answer: ok + "Connection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "1.0", answer: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "1.0 keeps", answer: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "1.0 keeps and closes", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive, close\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "1.0 until the end", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nhello"},
	{name: "HEAD with a length", method: "HEAD", answer: ok + "Content-Length: 5\r\n\r\n"},
	{name: "HEAD without a length", method: "HEAD", answer: ok + "\r\n"},
	{name: "HEAD in chunks", method: "HEAD", answer: chunked},
	{name: "HEAD with a body", method: "HEAD", answer: ok + "Content-Length: 5\r\n\r\nhello", unasked: true},
	{name: "204", answer: "HTTP/1.1 204 No Content\r\n\r\n"},
	{name: "204 with a length", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"},
	{name: "204 with a body", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", unasked: true},
	{name: "304 with a length", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nEtag: \"x\"\r\n\r\n"},
	{name: "205", answer: "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"},
	{name: "400 to a POST", method: "POST", answer: "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno\n"},
	{name: "500 in chunks", method: "POST", answer: "HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nno\n\r\n0\r\n\r\n"},
	{name: "redirect", answer: "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"},
	{name: "100 before", answer: "HTTP/1.1 100 Continue\r\n\r\n" + plainAnswer},
	{name: "102 and 103 before", answer: "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\nLink: </y>\r\n\r\n" + plainAnswer},
	{name: "100 times 100 before", answer: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100) + plainAnswer},
	{name: "100 with a length", answer: "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + plainAnswer},
	{name: "100 for ever", answer: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 4000) + plainAnswer, differs: shortHead},
	{name: "100 and nothing", answer: "HTTP/1.1 100 Continue\r\n\r\n"},
	{name: "101", answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", differs: protocols},
	{name: "no reason", answer: "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "an empty reason", answer: "HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a long reason", answer: "HTTP/1.1 200 all is well that ends well\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a reason with a control character", answer: "HTTP/1.1 200 O\x00K\r\nContent-Length: 5\r\n\r\nhello", differs: noRubbish},
	{name: "999", answer: "HTTP/1.1 999 Odd\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "099", answer: "HTTP/1.1 099 Odd\r\nContent-Length: 5\r\n\r\nhello", differs: ourStatus},
	{name: "two digits", answer: "HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "four digits", answer: "HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "no number", answer: "HTTP/1.1 2x0 OK\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a signed number", answer: "HTTP/1.1 +20 OK\r\nContent-Length: 5\r\n\r\nhello", differs: ourStatus},
	{name: "two spaces", answer: "HTTP/1.1  200 OK\r\nContent-Length: 5\r\n\r\nhello", differs: ourStatus},
	{name: "1.2", answer: "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello", differs: protocols},
	{name: "2.0", answer: "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", differs: protocols},
	{name: "http in small letters", answer: "http/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "0.9", answer: "hello\r\n\r\n"},
	{name: "another protocol", answer: "SSH-2.0-OpenSSH_9.2\r\n"},
	{name: "an empty line first", answer: "\r\n" + plainAnswer},
	{name: "names in any case", answer: ok + "content-LENGTH: 5\r\nx-a: 1\r\nX-a: 2\r\nX-A:3\r\nx-request-ID:  y \t\r\n\r\nhello"},
	{name: "an empty value", answer: ok + "X-Empty:\r\nX-Spaces:  \t\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "values of any bytes", answer: ok + "X-Bytes: \xff\x80 \"\t;:\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "names of any bytes", answer: ok + "!#$%&'*+-.^_`|~09az: 1\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "many headers", answer: ok + strings.Repeat("X-Many: y\r\n", 500) + "Content-Length: 5\r\n\r\nhello"},
	{name: "a long header", answer: ok + "X-Long: " + strings.Repeat("y", 20_000) + "\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a head of 100 KB", answer: ok + "X-Long: " + strings.Repeat("y", 100_000) + "\r\nContent-Length: 5\r\n\r\nhello", differs: shortHead},
	{name: "pragma", answer: ok + "Pragma: no-cache\r\nContent-Length: 5\r\n\r\nhello", differs: noPragma},
	{name: "a name behind a space", answer: ok + "A: b\r\n X-Space: y\r\nContent-Length: 5\r\n\r\nhello", differs: obsFold},
	{name: "the first name behind a space", answer: ok + " X-Space: y\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a length in two lines", answer: ok + "Content-Length:\r\n 5\r\n\r\nhello", differs: obsFold},
	{name: "a space before the colon", answer: ok + "Content-Length : 5\r\n\r\nhello", differs: noSpaces},
	{name: "a space in a name", answer: ok + "X Y: z\r\nContent-Length: 5\r\n\r\nhello", differs: noSpaces},
	{name: "no name", answer: ok + ": z\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "no colon", answer: ok + "nothing\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "a name of other bytes", answer: ok + "X-\xc3\xa4: z\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "NUL in a value", answer: ok + "X: a\x00b\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "CR in a value", answer: ok + "X: a\rb\r\nContent-Length: 5\r\n\r\nhello"},
	{name: "LF in a value", answer: ok + "X: a\nContent-Length: 5\r\n\r\nhello", differs: bareLF},
	{name: "lines that end in LF", answer: "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", differs: bareLF},
	{name: "a head that ends in LF", answer: ok + "Content-Length: 5\r\n\nhello", differs: bareLF},
	{name: "more than its length", answer: ok + "Content-Length: 5\r\n\r\nhello, world", unasked: true},
	{name: "more behind the last chunk", answer: chunked + "5\r\nhello\r\n0\r\n\r\nx", unasked: true},
	{name: "two answers", answer: plainAnswer + ok + "Content-Length: 5\r\n\r\nstray", unasked: true},
	{name: "two answers, the first without a body", answer: "HTTP/1.1 204 No Content\r\n\r\n" + plainAnswer, unasked: true},
}

// outcome is what a client makes of a conversation.
type outcome struct {
	Failed        string // where: head or body; and how, as far as both say so
	Status        string
	Minor         int
	Header        http.Header
	Trailer       http.Header
	ContentLength int64
	Encoding      []string
	Close         bool
	Body          string
	Connections   int32 // for this request and the next
	Next          string
}

// converse sends a request, and then another one, by which it is seen whether the connection is used again.
func converse(transport http.RoundTripper, method, url string, connections *atomic.Int32) (o outcome) {
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("a question")
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		panic(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		o.Failed = "head"
	} else {
		o.Status, o.Minor, o.Header, o.ContentLength = resp.Status, resp.ProtoMinor, resp.Header, resp.ContentLength
		o.Encoding, o.Close = resp.TransferEncoding, resp.Close
		text, err := io.ReadAll(resp.Body)
		o.Body, o.Trailer = string(text), resp.Trailer
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			o.Failed = "body: cut"
		case errors.Is(err, syscall.ECONNRESET):
			o.Failed = "body: reset"
		case err != nil:
			o.Failed = "body"
		}
		_ = resp.Body.Close()
	}
	o.Next = "ok"
	next, _ := http.NewRequest(http.MethodGet, url, http.NoBody)
	if resp, err := transport.RoundTrip(next); err != nil {
		o.Next = "failed"
	} else {
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "ok" {
			o.Next = fmt.Sprintf("%q, %v", text, err)
		}
		_ = resp.Body.Close()
	}
	o.Connections = connections.Load()
	return o
}

// scripted is a connection in memory that answers by a script.
type scripted struct {
	mu       sync.Mutex
	changed  *sync.Cond
	first    string // that is answered to the first request, a plain answer to the others
	end      error  // that follows the first answer; nil: nothing does
	step     int    // bytes of an answer that one Read returns; 0: all that is there
	keeps    bool   // the requests
	request  []byte // the first one, if it does
	written  []byte
	pending  []byte
	answered int
	closed   bool
}

func newScripted(first string, end error, step int) *scripted {
	c := &scripted{first: first, end: end, step: step}
	c.changed = sync.NewCond(&c.mu)
	return c
}

func (c *scripted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.answered > 0 && c.end != nil {
		return len(p), nil // the kernel takes it, and nobody reads it
	}
	c.written = append(c.written, p...)
	in := bufio.NewReader(bytes.NewReader(c.written))
	if req, err := http.ReadRequest(in); err == nil {
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			rest, _ := io.ReadAll(in)
			if c.keeps {
				c.request = c.written
			}
			c.written = rest
			answer := plainAnswer
			if c.answered == 0 {
				answer = c.first
			}
			c.answered++
			c.pending = append(c.pending, answer...)
			c.changed.Broadcast()
		}
	}
	return len(p), nil
}

func (c *scripted) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && len(c.pending) == 0 && (c.answered == 0 || c.end == nil) {
		c.changed.Wait()
	}
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(c.pending) == 0:
		return 0, c.end
	}
	n := len(c.pending)
	if c.step > 0 {
		n = min(n, c.step)
	}
	n = copy(p, c.pending[:n])
	c.pending = c.pending[n:]
	return n, nil
}

func (c *scripted) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.changed.Broadcast()
	return nil
}

func (c *scripted) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scripted) SetDeadline(time.Time) error      { return nil }
func (c *scripted) SetReadDeadline(time.Time) error  { return nil }
func (c *scripted) SetWriteDeadline(time.Time) error { return nil }

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// clients are this one and the oracle.
func clients(dial dialer) map[string]http.RoundTripper {
	own := &Transport{DialContext: dial}
	oracle := &http.Transport{DialContext: dial, DisableCompression: true}
	return map[string]http.RoundTripper{"own": own, "net/http": oracle}
}

// inMemory lets both clients have a conversation over connections in memory.
func inMemory(s script, end error, step int) map[string]outcome {
	got := map[string]outcome{}
	for _, name := range []string{"own", "net/http"} {
		var connections atomic.Int32
		dial := func(context.Context, string, string) (net.Conn, error) {
			if connections.Add(1) == 1 {
				return newScripted(s.answer, end, step), nil
			}
			return newScripted(plainAnswer, nil, 0), nil
		}
		transport := clients(dial)[name]
		got[name] = converse(transport, s.method, "http://engine/", &connections)
		transport.(interface{ CloseIdleConnections() }).CloseIdleConnections()
	}
	return got
}

// bySocket is the same over sockets; then the first connection is closed or reset behind its answer, if
// end is not nil.
func bySocket(t *testing.T, s script, end error) map[string]outcome {
	t.Helper()
	got := map[string]outcome{}
	for _, name := range []string{"own", "net/http"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var connections atomic.Int32
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				serving.Go(func() { serveScript(conn.(*net.TCPConn), s.answer, end, connections.Add(1) == 1) })
			}
		})
		transport := clients(nil)[name]
		got[name] = converse(transport, s.method, "http://"+listener.Addr().String(), &connections)
		transport.(interface{ CloseIdleConnections() }).CloseIdleConnections()
		_ = listener.Close()
		serving.Wait()
	}
	return got
}

func serveScript(conn *net.TCPConn, answer string, end error, first bool) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for ; ; first = false {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if !first {
			if _, err := io.WriteString(conn, plainAnswer); err != nil {
				return
			}
			continue
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
		if end != nil {
			if errors.Is(end, syscall.ECONNRESET) {
				_ = conn.SetLinger(0)
			}
			return
		}
	}
}

// reset is how a connection that was reset fails.
var reset = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

// hangs reports whether a script without an end may leave a client waiting for more of it.
func hangs(s script) bool {
	if s.differs != "" || s.waits {
		return true // for one of the two
	}
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(s.answer)), &http.Request{Method: s.method})
	for err == nil && resp.StatusCode < 200 {
		return !strings.HasSuffix(s.answer, "ok") && resp.StatusCode != http.StatusSwitchingProtocols
	}
	if err != nil {
		return errors.Is(err, io.ErrUnexpectedEOF)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.ContentLength < 0 && resp.Close && resp.TransferEncoding == nil || errors.Is(err, io.ErrUnexpectedEOF)
}

// compare holds both clients to the same outcome, or to another one where that is meant.
func compare(t *testing.T, s script, how string, got map[string]outcome) {
	t.Helper()
	own, oracle := got["own"], got["net/http"]
	failed := own.Failed
	if oracle.Failed == "body" && strings.HasPrefix(failed, "body: ") {
		own.Failed = "body" // it has another error for what is cut in trailers
	}
	if s.unasked { // net/http may notice too late, and take it for the next answer
		if own.Connections != 2 {
			t.Errorf("%s, %s: the connection is used again", s.name, how)
		}
		oracle.Connections, oracle.Next = own.Connections, own.Next
	}
	same := reflect.DeepEqual(own, oracle)
	own.Failed = failed
	switch {
	case s.differs == "" && !same:
		t.Errorf("%s, %s:\n     own %.400s\nnet/http %.400s", s.name, how, fmt.Sprintf("%+v", own), fmt.Sprintf("%+v", oracle))
	case s.differs != "" && same:
		t.Errorf("%s, %s: it is written down that it differs (%s), and it does not: %.400s", s.name, how, s.differs, fmt.Sprintf("%+v", own))
	}
	if own.Next != "ok" {
		t.Errorf("%s, %s: the next request: %s", s.name, how, own.Next)
	}
}

// Each conversation comes to the same with this client and with net/http, whether it is all there at once or
// comes byte by byte, whether the connection stays open or ends behind it, and so does the next request.
func TestConformance(t *testing.T) {
	log.SetOutput(io.Discard) // net/http reports what follows an answer
	defer log.SetOutput(os.Stderr)
	for _, s := range scripts {
		if !s.unasked {
			compare(t, s, "then the end", inMemory(s, io.EOF, 0))
			if len(s.answer) < 2000 {
				compare(t, s, "byte by byte, then the end", inMemory(s, io.EOF, 1))
				compare(t, s, "in threes, then the end", inMemory(s, io.EOF, 3))
			}
			if !hangs(s) {
				compare(t, s, "then nothing", inMemory(s, nil, 0))
			}
		}
		compare(t, s, "by a socket, then the end", bySocket(t, s, io.EOF))
		if !hangs(s) {
			compare(t, s, "by a socket, then nothing", bySocket(t, s, nil))
		}
	}
}

// What is cut anywhere, in order or by a reset, is never whole, and comes to the same with both clients.
func TestConformance_CutAtEachByte(t *testing.T) {
	for _, s := range []script{
		{name: "length", answer: ok + "Content-Length: 5\r\nX: y\r\n\r\nhello"},
		{name: "chunks", answer: chunked + "5;ext=\"1\"\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n"},
		{name: "trailers", answer: ok + "Transfer-Encoding: chunked\r\nTrailer: X-Usage\r\n\r\n5\r\nhello\r\n0\r\nX-Usage: 5\r\n\r\n"},
		{name: "100 before", answer: "HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + plainAnswer},
		{name: "204", answer: "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"},
		{name: "POST", method: http.MethodPost, answer: plainAnswer},
	} {
		whole := inMemory(s, nil, 0)["own"]
		if whole.Failed != "" {
			t.Fatalf("%s: %+v", s.name, whole)
		}
		for i := range len(s.answer) {
			part := s
			part.answer = s.answer[:i]
			for how, end := range map[string]error{"closed": io.EOF, "reset": reset} {
				for _, step := range []int{0, 1} {
					got := inMemory(part, end, step)
					compare(t, part, fmt.Sprintf("%s behind byte %d, in steps of %d", how, i, step), got)
					own := got["own"]
					if own.Failed == "" {
						t.Errorf("%s: %s behind byte %d, and whole", s.name, how, i)
					}
					if !strings.HasPrefix(whole.Body, own.Body) {
						t.Errorf("%s: %s behind byte %d: %q", s.name, how, i, own.Body)
					}
				}
			}
		}
	}
}

// The same by sockets, with a kernel's resets.
func TestConformance_CutAtEachByteOfASocket(t *testing.T) {
	s := script{answer: chunked + "5\r\nhello\r\n0\r\n\r\n"}
	for i := range len(s.answer) {
		part := script{name: fmt.Sprintf("cut behind byte %d", i), answer: s.answer[:i]}
		compare(t, part, "closed", bySocket(t, part, io.EOF))
		got := bySocket(t, part, syscall.ECONNRESET)["own"]
		if got.Failed == "" || got.Next != "ok" || !strings.HasPrefix("hello", got.Body) {
			t.Errorf("reset behind byte %d: %+v", i, got)
		}
	}
}

// A failure names one conversation.
func TestConformance_NamesAreUnique(t *testing.T) {
	names := map[string]bool{}
	for _, s := range scripts {
		if names[s.name] {
			t.Errorf("there are two called %q", s.name)
		}
		names[s.name] = true
	}
}
