package gateway

import "github.com/valyala/fasthttp"

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
