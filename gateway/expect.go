package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// expectsContinue is what fasthttp takes a client for that waits with its body, byte by byte.
var expectsContinue = []byte("100-continue")

// spellExpect spells a head's Expect as fasthttp knows it: Java's HttpClient says 100-Continue, and the
// value is without regard to case (RFC 9110, 10.1.1). What else it may be has been refused (head.field). A client of
// HTTP/1.0 would take 100 for the answer.
func spellExpect(h *fasthttp.RequestHeader) (unchanged fasthttp.RequestConfig) {
	if !h.IsHTTP11() {
		h.Del(fasthttp.HeaderExpect)
		return unchanged
	}
	if expect := h.Peek(fasthttp.HeaderExpect); len(expect) > 0 && !bytes.Equal(expect, expectsContinue) {
		h.SetBytesV(fasthttp.HeaderExpect, expectsContinue)
	}
	return unchanged
}

// answerExpect decides on a request whose client sends its body only once it is asked for it (Expect: 100-continue). What
// needs no body is answered by its handler at once. fasthttp then sends what the handler has set, with the status that is
// returned here, and closes the connection: the client may have begun to send the body.
func (s *Server) answerExpect(ctx *fasthttp.RequestCtx) (status int) {
	if s.needsBody(ctx) {
		return fasthttp.StatusContinue
	}
	s.app.Server().Handler(ctx)
	if conn, ok := ctx.Conn().(*clientConn); ok {
		conn.linger.Store(true)
	}
	return ctx.Response.StatusCode()
}

// needsBody reports whether the handler of a request would read its body: it is for an API, and its headers are right.
func (s *Server) needsBody(ctx *fasthttp.RequestCtx) bool {
	if s.dialectOf(string(ctx.URI().PathOriginal())) == nil || !ctx.IsPost() {
		return false
	}
	h := fieldsOf(&ctx.Request.Header)
	defer h.release()
	_, _, err := s.checkHeader(h)
	return err == nil
}
