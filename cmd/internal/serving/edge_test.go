package serving

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tidwall/gjson"
)

// edgeCase is a raw message to the port for clients, and what a strict server answers.
type edgeCase struct {
	name  string
	raw   string
	want  []int // statuses, one for each answer; those after the first of several messages
	or    int   // another status that is as good for the last of them
	close bool  // the connection ends after the last answer
}

// secret is in every refused message, and in no answer.
const secret = "Authorization: Bearer s3cr3t-of-the-client\r\n"

// edgeResult is what a case got.
type edgeResult struct {
	statuses []int
	closed   bool
	echoed   bool
	err      error
}

// play sends a message and reads as many answers as are wanted, and one more that must not
// come.
func (e edgeCase) play(dial func() (net.Conn, error)) (r edgeResult) {
	conn, err := dial()
	if err != nil {
		return edgeResult{err: err}
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, e.raw) // a server that refuses need not read all
	}()
	defer func() {
		_ = conn.Close()
		<-sent
	}()
	in := bufio.NewReader(conn)
	for range e.want {
		resp, err := http.ReadResponse(in, nil)
		for err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(in, nil)
		}
		if err != nil {
			r.err = err
			return r
		}
		got := readResponse(resp)
		r.statuses = append(r.statuses, got.status)
		r.echoed = r.echoed || strings.Contains(fmt.Sprint(got.body, got.header), "s3cr3t")
	}
	// A connection that stays answers another request.
	if !e.close {
		_, r.err = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp, err := http.ReadResponse(in, nil); err != nil || readResponse(resp).status != 200 {
			r.closed = true
		}
		return r
	}
	_, err = in.ReadByte()
	r.closed = errors.Is(err, io.EOF)
	return r
}

func (e edgeCase) met(r edgeResult) bool {
	if r.err != nil || r.echoed || r.closed != e.close || len(r.statuses) != len(e.want) {
		return false
	}
	for i, want := range e.want {
		if got := r.statuses[i]; got != want && (i < len(e.want)-1 || got != e.or) {
			return false
		}
	}
	return true
}

func (e edgeCase) expected() string {
	text := strings.Trim(fmt.Sprint(e.want), "[]")
	if e.or != 0 {
		text += fmt.Sprintf(" or %d", e.or)
	}
	if e.close {
		text += ", close"
	}
	return text
}

func (r edgeResult) String() string {
	text := strings.Trim(fmt.Sprint(r.statuses), "[]")
	if r.closed {
		text += ", close"
	}
	if r.echoed {
		text += ", the request is repeated"
	}
	if r.err != nil {
		text += ", " + r.err.Error()
	}
	return text
}

// message is a chat request with these lines of head after Host, and this body.
func message(lines, body string) string {
	return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + secret + lines + "\r\n" + body
}

// sized is a chat request of a known length, with these lines more.
func sized(lines string) string {
	body := edgeBody
	return message(fmt.Sprintf("Content-Length: %d\r\n%s", len(body), lines), body)
}

// first is a chat request that begins in this way, with all else as it should be.
func first(line, host string) string {
	return fmt.Sprintf("%s\r\n%s%sContent-Length: %d\r\n\r\n%s", line, host, secret, len(edgeBody), edgeBody)
}

// target is a chat request for another target.
func target(t string) string { return first("POST "+t+" HTTP/1.1", "Host: x\r\n") }

// chunked is a chat request in chunks that are as given.
func chunked(chunks string) string { return message("Transfer-Encoding: chunked\r\n", chunks) }

const edgeBody = `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`

// edgeMaxBody is the limit of bodies in these tests.
const edgeMaxBody = 1 << 20

// edgeCases are the raw messages, by the kind of what is wrong with them.
func edgeCases() (all []edgeCase) {
	n := len(edgeBody)
	good := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n, edgeBody)
	add := func(kind string, want, or int, closes bool, raws ...string) {
		for i, raw := range raws {
			all = append(all, edgeCase{name: fmt.Sprintf("%s (%d)", kind, i+1), raw: raw, want: []int{want}, or: or, close: closes})
		}
	}
	refused := func(kind string, raws ...string) { add(kind, 400, 0, true, raws...) }
	served := func(kind string, raws ...string) { add(kind, 200, 0, false, raws...) }
	lengths := func(values ...string) (raws []string) {
		for _, v := range values {
			raws = append(raws, message("Content-Length:"+v+"\r\n", edgeBody))
		}
		return raws
	}
	encodings := func(lines ...string) (raws []string) {
		for _, l := range lines {
			raws = append(raws, message(l+"\r\n", good))
		}
		return raws
	}
	hosts := func(values ...string) (raws []string) {
		for _, v := range values {
			raws = append(raws, first("POST /v1/chat/completions HTTP/1.1", "Host: "+v+"\r\n"))
		}
		return raws
	}
	lines := func(more ...string) (raws []string) {
		for _, l := range more {
			raws = append(raws, sized(l+"\r\n"))
		}
		return raws
	}
	targets := func(all ...string) (raws []string) {
		for _, t := range all {
			raws = append(raws, target(t))
		}
		return raws
	}
	versions := func(all ...string) (raws []string) {
		for _, v := range all {
			raws = append(raws, first("POST /v1/chat/completions"+v, "Host: x\r\n"))
		}
		return raws
	}

	served("good", sized(""), chunked(good), chunked(fmt.Sprintf("%X;a=b;c=\"d\"\r\n%s\r\n0;e=f\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", n, edgeBody)),
		chunked(fmt.Sprintf("1\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", edgeBody[:1], n-1, edgeBody[1:])), sized("X-Empty:\r\nX-Text: caf\xc3\xa9 \t x\r\nx-under_score: 1\r\n"))
	refused("two Content-Length, different", sized("Content-Length: 6\r\n"), sized("content-length: 0\r\n"))
	refused("two Content-Length, equal", sized(fmt.Sprintf("Content-Length: %d\r\n", n)))
	refused("odd Content-Length", lengths(" -1", " +5", " 0x5", " 5 5", "", " ", " 5,5", " 5, 5", " 5;", " \v5", " 5.0", " 1e1", " five")...)
	add("Content-Length beyond the limit", 413, 0, true, message(fmt.Sprintf("Content-Length: %d\r\n", edgeMaxBody+1), ""),
		message("Content-Length: 9223372036854775807\r\n", ""), message("Content-Length: 9223372036854775808\r\n", ""),
		message("Content-Length: 99999999999999999999999999\r\n", ""), message("Content-Length: 10737418240\r\nExpect: 100-continue\r\n", ""))
	refused("Content-Length and chunked", encodings(fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked", len(good)),
		fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d", len(good)),
		"Transfer-Encoding: chunked\r\nContent-Length: 0", fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive", len(good)))...)
	add("unknown Transfer-Encoding", 400, 501, true, encodings("Transfer-Encoding: xchunked", "Transfer-Encoding: chunkedx", "Transfer-Encoding: \"chunked\"",
		"Transfer-Encoding: chunked;q=1", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip", "Transfer-Encoding:", "Transfer-Encoding: chunked, identity",
		"Transfer-Encoding: identity", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: ,chunked", "Transfer-Encoding: chunked,",
		fmt.Sprintf("Transfer-Encoding: identity\r\nContent-Length: %d", len(good)))...)
	add("two Transfer-Encoding", 400, 501, true, encodings("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
		"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-encoding: x")...)
	add("Transfer-Encoding with control bytes", 400, 501, true, encodings("Transfer-Encoding: \vchunked", "Transfer-Encoding:\fchunked", "Transfer-Encoding: chunked\x00", "Transfer-Encoding: chun\x7fked",
		"Transfer-Encoding: \xa0chunked")...)
	served("Transfer-Encoding in other spellings", encodings("Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked\t", "TRANSFER-ENCODING: CHUNKED", "tRaNsFeR-eNcOdInG:   Chunked  ")...)
	refused("HTTP/1.0 with Transfer-Encoding", first("POST /v1/chat/completions HTTP/1.0", "Host: x\r\nTransfer-Encoding: chunked\r\n"),
		"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"+secret+"Transfer-Encoding: chunked\r\n\r\n"+good)
	refused("no Host", first("POST /v1/chat/completions HTTP/1.1", ""), hosts("")[0], hosts(" ")[0])
	refused("two Host", hosts("x\r\nHost: x", "x\r\nHost: y", "x\r\nhost:")...)
	refused("odd Host", hosts("u@x", "u:p@x", "a b", "a,b", "a, b", "a/b", "a?b", "a#b", `a\b`, "a:b", "a:1:2", "a:123456", "[::1", "::1]", "[x]", "[::1]x", "<x>", `"x"`, "http://x", "x;y", "x\xff", ":80", "a\tb")...)
	served("Host of all kinds", hosts("x", "x:80", "X.example.COM.", "10.0.0.1:8080", "[::1]:8080", "[2001:db8::1]", "a_b-c", "x ")...)
	refused("absolute form of another host", targets("http://evil/v1/chat/completions", "http://x:81/v1/chat/completions", "http://x@evil/v1/chat/completions", "http://u@x/v1/chat/completions",
		"http://xx/v1/chat/completions", "http:///v1/chat/completions", "https://evil/v1/chat/completions", "ftp://x/v1/chat/completions", "http:/v1/chat/completions", "x://x/v1/chat/completions")...)
	served("absolute form of this host", targets("http://x/v1/chat/completions", "HTTP://X/v1/chat/completions", "https://x/v1/chat/completions")...)
	refused("authority or asterisk form", targets("x:80", "*", "x", "v1/chat/completions", "?q", "")...)
	add("CONNECT and TRACE", 405, 400, true, "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n"+secret+"\r\n", "TRACE / HTTP/1.1\r\nHost: x\r\n"+secret+"\r\n",
		first("TRACE /v1/chat/completions HTTP/1.1", "Host: x\r\n"), first("CONNECT /v1/chat/completions HTTP/1.1", "Host: x\r\n"))
	refused("a method that is none", first("PO(ST /v1/chat/completions HTTP/1.1", "Host: x\r\n"), first(" POST /v1/chat/completions HTTP/1.1", "Host: x\r\n"),
		first("/v1/chat/completions HTTP/1.1", "Host: x\r\n"), first("POST\t/v1/chat/completions HTTP/1.1", "Host: x\r\n"), first("POST\x00 /v1/chat/completions HTTP/1.1", "Host: x\r\n"))
	refused("control bytes", lines("X: a\x00b", "X: a\rb", "X: a\nb", "X: a\r\r", "X: a\x01", "X: a\x7fb", "X\x00: a", "X\r: a", "X:\va", "X: \x1b[31m")...)
	refused("control bytes in the target", targets("/v1/chat/completions\x00", "/v1/chat/completions\tx", "/v1/chat/compl\x7fetions", "/v1/chat/completions\rx", "/v1/chat/\xff", "/v1/chat/completions#x", "/v1/chat/completions x")...)
	refused("bare line feeds", strings.ReplaceAll(sized(""), "\r\n", "\n"), strings.Replace(sized(""), "\r\n", "\n", 1), strings.Replace(sized(""), "Host: x\r\n", "Host: x\n", 1),
		strings.Replace(sized(""), "\r\n\r\n", "\r\n\n", 1), strings.Replace(sized(""), "\r\n\r\n", "\n\r\n", 1), strings.Replace(sized(""), "\r\n\r\n", "\n\n", 1), "\n"+sized(""), "\n\n\n"+sized(""))
	refused("folded lines", lines("X: a\r\n b", "X: a\r\n\tb", "X:\r\n a", "X: a\r\n ", "Transfer-Encoding:\r\n chunked")...)
	refused("folded lines where it counts", encodings("Transfer-Encoding:\r\n chunked", "Transfer-Encoding:\r\n\tchunked", "Transfer-Encoding: chu\r\n nked", "X: a\r\n Transfer-Encoding: chunked")...)
	refused("folded Host", hosts("x\r\n y", "\r\n x")...)
	refused("a first line that is folded", first("POST /v1/chat/completions HTTP/1.1\r\n X: y", "Host: x\r\n"), first("POST /v1/chat/completions\r\n HTTP/1.1", "Host: x\r\n"))
	refused("header names", lines("X Y: a", "X : a", "X\t: a", ": a", " : a", "X(Y): a", "X\xff: a", "\"X\": a", "X/Y: a", "Content-Length : 5", "Transfer-Encoding : chunked", "Host : x", "X,Y: a")...)
	refused("no colon", lines("nocolon", "X", "HTTP/1.1", "GET / HTTP/1.1")...)
	add("header block beyond the limit", 431, 0, true, sized("X: "+strings.Repeat("a", 70<<10)+"\r\n"), sized(strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 100)), sized("X: "+strings.Repeat("a", 1<<20)+"\r\n"))
	add("more headers than the limit", 431, 0, true, sized(strings.Repeat("a:b\r\n", 6000)), sized(strings.Repeat("a:\r\n", 200)), sized(strings.Repeat("Cookie: a\r\n", 10_000)))
	add("target beyond the limit", 414, 431, true, targets("/"+strings.Repeat("a", 9000), "/"+strings.Repeat("a", 70<<10), "/v1/chat/completions?"+strings.Repeat("a", 1<<20))...)
	for _, size := range []string{"0x4", "+4", "-4", " 4", "4 ", "4\t", "\t4", "00000000000000004", "FFFFFFFFFFFFFFFFF", "", " ", "g", "4,4", "4.0", "4\x00", "4\v", ";x", "4\r", "４", "ffffffffffffffff", "8000000000000000"} {
		refused("chunk size "+fmt.Sprintf("%q", size), chunked(size+"\r\n{\"a\"\r\n0\r\n\r\n"))
	}
	refused("chunk lines", chunked("4\n{\"a\"\r\n0\r\n\r\n"), chunked("4;a\n{\"a\"\r\n0\r\n\r\n"), chunked("4;a=\x00\r\n{\"a\"\r\n0\r\n\r\n"), chunked("4\r\n{\"a\"\n0\r\n\r\n"), chunked("4;a\r\r\n{\"a\"\r\n0\r\n\r\n"))
	add("chunk extension without end", 400, 413, true, chunked(fmt.Sprintf("%x;%s\r\n%s\r\n0\r\n\r\n", n, strings.Repeat("a", 1<<20), edgeBody)),
		chunked(fmt.Sprintf("%x\r\n%s\r\n0;%s\r\n\r\n", n, edgeBody, strings.Repeat("a", 1<<20))))
	add("trailers beyond the limit", 400, 413, true, chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\nX: %s\r\n\r\n", n, edgeBody, strings.Repeat("a", 70<<10))),
		chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n%s\r\n", n, edgeBody, strings.Repeat("a:b\r\n", 6000))))
	for _, trailer := range []string{"X Y: a\r\n", "X : a\r\n", "nocolon\r\n", "X: a\nb: c\r\n", "X: a\x00\r\n", "X: a\r\n b\r\n", " X: a\r\n", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Host: y\r\n", "\n"} {
		refused("trailer "+fmt.Sprintf("%q", trailer), chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n%s\r\n", n, edgeBody, trailer)))
	}
	long := strings.Repeat("x", edgeMaxBody)
	add("chunked beyond the limit", 413, 0, true, chunked(fmt.Sprintf("%x\r\n%s", edgeMaxBody*2, long+long)), chunked(strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", 1<<16, long[:1<<16]), 20)),
		chunked("7fffffffffffffff\r\n"))
	refused("chunk shorter or longer than said", chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n-1, edgeBody)), chunked(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n+1, edgeBody)),
		chunked(fmt.Sprintf("%x\r\n%s0\r\n\r\n", n, edgeBody)))
	served("Expect: 100-continue", sized("Expect: 100-continue\r\n"), sized("Expect: 100-Continue\r\n"))
	add("Expect: anything else", 417, 0, true, lines("Expect: x", "Expect: 100-continue, x", "Expect: 200-ok", "Expect: 100-continue\r\nExpect: x", "Expect:")...)
	add("HTTP/2 and unknown versions", 400, 505, true, append(versions(" HTTP/2.0", " HTTP/3.0", " HTTP/1.2", " HTTP/0.9", " HTTP/11", " HTTP/1.10", " http/1.1", " HTTP/1.1 ", "  HTTP/1.1", "", " HTTP/1,1", " HTTP/1", " XTTP/1.1", " HTTP/1.1x"),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")...)
	refused("HTTP/0.9", "GET /v1/models\r\n"+secret+"\r\n", "GET /v1/models HTTP/0.9\r\nHost: x\r\n"+secret+"\r\n", versions(" HTTP/0.9")[0])
	all = append(all,
		edgeCase{name: "good, good, good", raw: sized("") + chunked(good) + sized(""), want: []int{200, 200, 200}},
		edgeCase{name: "good, bad, good", raw: sized("") + sized("X : a\r\n") + sized(""), want: []int{200, 400}, close: true},
		edgeCase{name: "good in chunks, bad, good", raw: chunked(good) + sized("Transfer-Encoding: chunked\r\n") + sized(""), want: []int{200, 400}, close: true},
		edgeCase{name: "good, too long, good", raw: sized("") + message("Content-Length: 999999999\r\n", "") + sized(""), want: []int{200, 413}, close: true},
		edgeCase{name: "good, garbage", raw: sized("") + "\x16\x03\x01\x02" + strings.Repeat("\x00", 300), want: []int{200, 400}, close: true},
		edgeCase{name: "HTTP/1.0 that is kept, then bad", raw: first("POST /v1/chat/completions HTTP/1.0", "Connection: keep-alive\r\n") + "GET /health\r\n\r\n", want: []int{200, 400}, close: true},
	)
	refused("TLS to plain text", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"+strings.Repeat("\x01", 200)+"\n\r\n\r\n")
	served("Upgrade is ignored", sized("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"),
		sized("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"))
	add("other paths", 404, 400, false, targets("/v1/../admin", "/v1/chat/../chat/completions", "/v1/chat/%2e%2e/chat/completions", "/%2e%2e/v1/chat/completions", "/v1/chat/completions;x",
		"/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat%2fcompletions", "/V1/Chat/Completions", "/v1/chat/completions/", "/./v1/chat/completions", "/v1//chat/completions", `/v1\chat\completions`, "/%76%31/chat/completions")...)
	add("paths that look like hosts", 404, 400, true, targets("//v1//chat/completions", "//x/v1/chat/completions", "//evil/v1/chat/completions", "///v1/chat/completions")...)
	add("coding of a body that is not decoded", 415, 0, false, sized("Content-Encoding: compress\r\n"), sized("Content-Encoding: lz4\r\n"), sized("Content-Encoding: gzip, gzip\r\n"))
	add("body that is not compressed as it says", 400, 0, false, sized("Content-Encoding: gzip\r\n"), sized("Content-Encoding: deflate\r\n"), sized("Content-Encoding: br\r\n"), sized("Content-Encoding: zstd\r\n"))
	return all
}

// edgeTable prints what cases got, and fails for each that differs.
type edgeTable struct {
	mu   sync.Mutex // guards rows
	rows []string
}

func (e *edgeTable) add(t *testing.T, name, expected, got string, met bool) {
	mark := "ok"
	if !met {
		mark = "DIFFERS"
		t.Errorf("%s: expected %s, got %s", name, expected, got)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rows = append(e.rows, fmt.Sprintf("%s\t%s\t%s\t%s", name, expected, got, mark))
}

func (e *edgeTable) print() {
	if !testing.Verbose() {
		return
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(out, "case\texpected\tgot\t")
	for _, row := range e.rows {
		_, _ = fmt.Fprintln(out, row)
	}
	_ = out.Flush()
}

func TestEdge_RawMessages(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.MaxBody = edgeMaxBody }})
	playEdge(t, c, func() (net.Conn, error) { return net.Dial("tcp", c.node.ports.clients.Addr().String()) })
}

// playEdge plays all cases, each on a connection of its own, eight at a time, and counts
// what reached the engines: nothing of what was refused.
func playEdge(t *testing.T, c *cluster, dial func() (net.Conn, error)) {
	cases := edgeCases()
	results := make([]edgeResult, len(cases))
	var plays sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, e := range cases {
		slots <- struct{}{}
		plays.Go(func() {
			results[i] = e.play(dial)
			<-slots
		})
	}
	plays.Wait()
	var table edgeTable
	defer table.print()
	served := 0
	for i, e := range cases {
		table.add(t, e.name, e.expected(), results[i].String(), e.met(results[i]))
		for _, status := range e.want {
			if status == 200 {
				served++
			}
		}
	}
	if got := len(requests(c.decode, chatPath)); got != served {
		t.Errorf("%d requests reached decode, want %d", got, served)
	}
	if got := c.post(chatPath, chatBody("")); got.status != 200 || !gjson.Valid(got.body) {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

// A message that stops coming is answered within the read timeout, wherever it stops.
func TestEdge_MessagesThatStopComing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.ReadTimeout = 2 * time.Second }})
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + secret
	slow := edgeCase{want: []int{408}, close: true}
	second := edgeCase{want: []int{200, 408}, close: true}
	var table edgeTable
	defer table.print()
	var plays sync.WaitGroup
	for name, raw := range map[string]string{
		"half a request line":      head[:20],
		"half a head":              head,
		"a body that is short":     head + "Content-Length: 100\r\n\r\n{",
		"a long body that is":      head + "Content-Length: 100000\r\n\r\n" + strings.Repeat(" ", 50_000),
		"no body at all":           head + "Content-Length: 100000\r\n\r\n",
		"half a chunk":             head + "Transfer-Encoding: chunked\r\n\r\n64\r\n{",
		"half a chunk's size":      head + "Transfer-Encoding: chunked\r\n\r\n6",
		"no last chunk":            head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"half a trailer":           head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-A",
		"good, then half a head":   sized("") + head,
		"good, then half a length": sized("") + head + "Content-Length: 1",
	} {
		e := slow
		if strings.HasPrefix(name, "good") {
			e = second
		}
		e.name, e.raw = name, raw
		plays.Go(func() {
			r := e.play(func() (net.Conn, error) { return net.Dial("tcp", c.node.ports.clients.Addr().String()) })
			table.add(t, e.name, e.expected(), r.String(), e.met(r))
		})
	}
	plays.Go(func() {
		got := trickle(c.node.ports.clients.Addr().String(), head+"X-Slow: "+strings.Repeat("a", 10_000))
		table.add(t, "a head byte by byte", "408, close", got, got == "408, close")
	})
	plays.Wait()
	if n := len(requests(c.decode, chatPath)); n != 2 {
		t.Errorf("%d requests reached decode, want the 2 that were whole", n)
	}
}

// trickle sends text ten bytes a second, until it is answered.
func trickle(address, text string) string {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	answered := make(chan string, 1)
	go func() {
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			answered <- err.Error()
			return
		}
		r := edgeResult{statuses: []int{readResponse(resp).status}}
		_, err = in.ReadByte()
		// A byte that arrives after the close resets the connection.
		r.closed = errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
		answered <- r.String()
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range len(text) {
		select {
		case got := <-answered:
			return got
		case <-tick.C:
			_, _ = conn.Write([]byte{text[i]}) // one that is closed is answered
		}
	}
	return "no answer"
}

// Idle connections keep no client out, and are closed in time.
func TestEdge_IdleConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.ConnIdle = 5 * time.Second }})
	conns := make([]net.Conn, idleConnections(t))
	for i := range conns {
		conn, err := net.Dial("tcp", c.node.ports.clients.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	if got := c.post(chatPath, chatBody("")); got.status != 200 {
		t.Errorf("beside them: %d %s", got.status, got.body)
	}
	answered, closed := 0, 0
	deadline := time.Now().Add(testTimeout)
	for _, conn := range conns {
		_ = conn.SetReadDeadline(deadline)
		text, err := io.ReadAll(conn)
		if strings.HasPrefix(string(text), "HTTP/1.1 200 OK\r\n") {
			answered++
		}
		if err == nil {
			closed++
		}
	}
	var table edgeTable
	expected := fmt.Sprintf("%[1]d answered, %[1]d closed", len(conns))
	got := fmt.Sprintf("%d answered, %d closed", answered, closed)
	table.add(t, "idle connections", expected, got, got == expected)
	table.print()
}

// idleConnections is how many a test may have, each with two ends in this process.
func idleConnections(t *testing.T) int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return int(min(10_000, limit.Cur/4))
}
