package gateway

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
)

// What no refusal may repeat: a prompt, an address of an engine.
const (
	secretPrompt  = "the owl told nobody"
	secretAddress = "10.11.12.13:5600"
)

// promptOf is a request of an API that nothing is wrong with.
func promptOf(d *api.Dialect, more string) string {
	field := map[*api.Dialect]string{
		api.Chat:     `"messages":[{"role":"user","content":"` + secretPrompt + `"}]`,
		api.Messages: `"max_tokens":5,"messages":[{"role":"user","content":"` + secretPrompt + `"}]`,
		api.Generate: `"text":"` + secretPrompt + `"`, api.Completions: `"prompt":"` + secretPrompt + `"`,
	}[d]
	if field == "" {
		field = `"input":"` + secretPrompt + `"`
	}
	return `{"model":"m",` + field + more + `}`
}

// refusals are checked as they come, and what they said is kept.
type refusals struct {
	t    *testing.T
	said []string
}

// wanted is how a refusal must look.
type wanted struct {
	status int
	wait   bool // the client is asked to come back
	final  bool // it is told not to try again
	own    bool // the body is the engine's, which has its shape already
	unread bool // its name was not read: the request is refused before
}

// check holds an answer to the shape of an API.
func (r *refusals) check(name string, d *api.Dialect, got reply, want wanted) {
	r.t.Helper()
	wrong := func(format string, args ...any) {
		r.t.Helper()
		r.t.Errorf("%s, %s: %s: %d %v %s", d.Path, name, fmt.Sprintf(format, args...), got.status, got.header, got.body)
	}
	body := gjson.Parse(got.body)
	message := body.Get("error.message").String()
	r.said = append(r.said, message)
	lacksRoom := strings.Contains(message, "at capacity") || strings.Contains(message, "servers are busy") || strings.Contains(message, "the request's deadline")
	if d.Anthropic && want.status == 503 && lacksRoom {
		want.status = 529
	}
	if got.status != want.status || got.err != nil {
		wrong("want %d, %v", want.status, got.err)
	}
	id := got.header.Get("X-Request-Id")
	if got.header.Get("Content-Type") != "application/json" || (id != "mine-7") != want.unread || id == "" {
		wrong("headers")
	}
	if d.Anthropic {
		checkAnthropic(wrong, body, got.header, anthropicTypes[got.status])
	} else if !want.own {
		checkOpenAI(wrong, body)
	}
	seconds, ms := got.header.Get("Retry-After"), got.header.Get("Retry-After-Ms")
	if (seconds != "") != want.wait || (ms != "") != want.wait {
		wrong("asked to come back: %v", want.wait)
	}
	if n, err := strconv.Atoi(ms); want.wait && (err != nil || n < 1 || seconds != strconv.Itoa((n+999)/1000)) {
		wrong("retry after")
	}
	if (got.header.Get("X-Should-Retry") == "false") != want.final {
		wrong("told not to try again: %v", want.final)
	}
	if (got.header.Get("Www-Authenticate") != "") != (got.status == 401) || (got.header.Get("Accept-Encoding") != "") != (got.status == 415) {
		wrong("what would be accepted")
	}
	r.leaks(wrong, got.body)
	for _, values := range got.header {
		r.leaks(wrong, strings.Join(values, " "))
	}
}

// checkOpenAI holds a body to OpenAI's error (openai 3.54 types/shared/error_object.py).
func checkOpenAI(wrong func(string, ...any), body gjson.Result) {
	text := func(v gjson.Result) bool { return v.Type == gjson.String && v.Str != "" }
	textOrNull := func(v gjson.Result) bool { return text(v) || v.Type == gjson.Null && v.Exists() }
	e := body.Get("error")
	if len(body.Map()) != 1 || len(e.Map()) != 4 || !text(e.Get("message")) || !text(e.Get("type")) || !textOrNull(e.Get("param")) || !textOrNull(e.Get("code")) {
		wrong("no error of OpenAI's")
	}
}

// anthropicTypes are those that the SDK's classes for a status stand for (anthropic 2.12
// types/shared, _exceptions.py; 413 as the documentation has it).
var anthropicTypes = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error",
	408: "timeout_error", 413: "request_too_large", 414: "invalid_request_error", 415: "invalid_request_error", 417: "invalid_request_error",
	422: "invalid_request_error", 429: "rate_limit_error", 431: "invalid_request_error", 499: "invalid_request_error",
	500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 505: "api_error", 508: "api_error", 529: "overloaded_error",
}

// checkAnthropic holds a body to Anthropic's error (anthropic 2.12 types/shared/error_response.py).
func checkAnthropic(wrong func(string, ...any), body gjson.Result, header http.Header, want string) {
	if len(body.Map()) != 3 || body.Get("type").String() != "error" || len(body.Get("error").Map()) != 2 || body.Get("error.message").String() == "" {
		wrong("no error of Anthropic's")
	}
	if kind := body.Get("error.type").String(); kind == "" || kind != want {
		wrong("its type is %q, want %q", kind, want)
	}
	if id := header.Get("X-Request-Id"); body.Get("request_id").String() != id || header.Get("Request-Id") != id {
		wrong("it does not name the request")
	}
}

func (r *refusals) leaks(wrong func(string, ...any), text string) {
	for _, secret := range []string{secretPrompt, secretAddress, "127.0.0.1", "sk-", "panic", "goroutine"} {
		if strings.Contains(text, secret) {
			wrong("it says %q", secret)
		}
	}
}

// ask sends a request that names itself.
func (r *refusals) ask(g *running, method, path, body string, headers ...string) reply {
	return g.ask(method, path, body, append([]string{"X-Request-Id", "mine-7"}, headers...)...)
}

// givenError is an error and how its refusal must look.
type givenError struct {
	err error
	wanted
}

// everyError lists what a request can fail with, by the code that makes it.
func everyError() (all []givenError) {
	leg := func(kind pd.Kind, status int, body string) error {
		return fmt.Errorf("decode: %w", &pd.LegError{Leg: pd.DecodeLeg, Server: secretAddress, Kind: kind, Status: status, Body: []byte(body), Err: errors.New("dial " + secretAddress)})
	}
	limit := func(of string, never bool) error {
		return &access.LimitError{Of: of, Limit: 5, Wait: time.Second, Never: never}
	}
	transient, final := wanted{status: 503, wait: true}, wanted{status: 400, final: true}
	of := func(w wanted, status int) wanted { w.status = status; return w }
	all = []givenError{
		{errNoKey, of(final, 401)},
		{errUnknownKey, of(final, 401)},
		{errUnknownModel, of(final, 404)},
		{errNotStored, of(final, 404)},
		{errExpansion, of(final, 413)},
		{scalefromzero.ErrNoAdapter, of(final, 404)},
		{retry.ErrQuarantined, of(final, 422)},
		{errStopping, transient},
		{queue.ErrDeadline, transient},
		{queue.ErrDisplaced, transient},
		{queue.ErrFull, transient},
		{queue.ErrTimeout, transient},
		{&pd.ContextLengthError{Dialect: api.Chat, Longest: 9, Prompt: 5, Output: 5, Field: "max_tokens"}, of(final, 400)},
		{&pd.NoServerError{Role: pools.Decode}, transient},
		{&pd.NoServerError{Role: pools.Prefill}, transient},
		{&pd.NoServerError{NoPair: true}, transient},
		{&pd.NoServerError{Role: pools.Decode, Unsaid: true}, transient},
		{limit(access.OfRequests, false), of(transient, 429)},
		{limit(access.OfPrompt, false), of(transient, 429)},
		{limit(access.OfOutput, false), of(transient, 429)},
		{limit(access.OfConcurrent, false), of(transient, 429)},
		{limit(access.OfPrompt, true), of(final, 429)},
		{leg(pd.Refused, 400, ``), final},
		{leg(pd.Refused, 422, `{"message":"too odd"}`), of(final, 422)},
		{leg(pd.Refused, 400, `{"error":{"code":400}}`), final},
		{leg(pd.Refused, 400, `{"error":{"message":"too odd","type":"BadRequestError","param":null,"code":400}}`), wanted{status: 400, final: true, own: true}},
		{leg(pd.Refused, 401, `{"error":{"message":"sk-engine"}}`), of(final, 401)},
		{leg(pd.Busy, 503, secretAddress), transient},
		{leg(pd.Unsent, 0, ""), transient},
		{leg(pd.Unready, 0, ""), transient},
		{leg(pd.Ours, 0, ""), transient},
		{leg(pd.Timeout, 0, ""), wanted{status: 504}},
		{leg(pd.Broken, 500, secretAddress), wanted{status: 502}},
		{leg(pd.Gone, 0, ""), wanted{status: 499}},
		{context.Canceled, wanted{status: 499}},
		{errors.New("panic: " + secretAddress), wanted{status: 500}},
		{unreadable(errors.New(secretAddress)), final},
	}
	for _, m := range []*badMessage{
		errLineEnd, errControl, errTarget, errHeadSize, errFields, errChunkSize, errChunkLine, errChunkEnd, errTrailers, errBodyLength, errRequestLine,
		errVersion, errMethod, errTargetForm, errTargetByte, errNoPath, errFieldLine, errTwoHosts, errHost, errOtherHost, errTwoLengths, errLength,
		errTwoCodings, errCoding, errBothLengths, errOldChunks, errExpect, errTrailer,
	} {
		all = append(all, givenError{m.request(), of(final, m.status)})
	}
	return all
}

// Each kind of failure of a leg has its refusal in the list.
func TestRefusals_KindsAreAllListed(t *testing.T) {
	var listed []string
	for _, e := range everyError() {
		var leg *pd.LegError
		if errors.As(e.err, &leg) {
			listed = append(listed, string(leg.Kind))
		}
	}
	source, err := parser.ParseFile(token.NewFileSet(), "../pd/failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	ast.Inspect(source, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Type != nil && fmt.Sprint(spec.Type) == "Kind" {
			kinds++
			if text, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value); !slices.Contains(listed, text) {
				t.Errorf("no refusal is listed for a leg that is %s", text)
			}
		}
		return true
	})
	if kinds < 8 {
		t.Errorf("%d kinds are declared", kinds)
	}
}

// Every refusal has the shape, the type, the status and the headers of the API that was asked,
// and names no server, nor what was in the prompt. What the gateway says in any is seen here on
// the wire: one that is new fails the test until it is asked for too.
func TestRefusals_HaveTheShapeOfTheirAPI(t *testing.T) {
	t.Parallel()
	r := &refusals{t: t}
	for _, d := range api.Dialects() {
		r.given(d)
		r.whole(d)
		r.withKeys(d)
		r.byEngines(d)
	}
	r.badBodies()
	r.withoutAPath()
	for _, x := range texts(t) {
		if !slices.ContainsFunc(r.said, x.form.MatchString) {
			t.Errorf("%s: nothing here is refused with %q", x.at, x.form)
		}
	}
}

// given walks what is hard to come by at a path that fails with it.
func (r *refusals) given(d *api.Dialect) {
	of := usual(r.t)
	all := everyError()
	of.before = func(s *Server) {
		s.app.Post("/given/:i", func(c *fiber.Ctx) error {
			i, err := c.ParamsInt("i")
			if err != nil {
				return err
			}
			x := s.begin(c, d)
			x.key = s.access.Find(nil)
			x.fail(c, all[i].err)
			return nil
		})
	}
	g := run(r.t, of, complete().roundTrip, alone(r.t))
	for i, e := range all {
		r.check(e.err.Error(), d, r.ask(g, "POST", "/given/"+strconv.Itoa(i), ""), e.wanted)
	}
}

// native makes a server speak the API that is asked, where only some do.
func native(d *api.Dialect, spec pools.Spec) pools.Spec {
	spec.Native = d.Native
	return spec
}

// whole are refusals of a gateway that is open to all.
func (r *refusals) whole(d *api.Dialect) {
	of := usual(r.t)
	const most = 64 << 10
	of.config = func(c *Config) { c.MaxBody = most }
	g := run(r.t, of, complete().roundTrip, native(d, alone(r.t)))
	good := promptOf(d, "")
	for _, x := range []struct {
		name, method, body string
		headers            []string
		wanted
	}{
		{"bad JSON", "POST", good[:len(good)-1], nil, wanted{status: 400, final: true}},
		{"nothing", "POST", "", nil, wanted{status: 400, final: true}},
		{"too large", "POST", good + strings.Repeat(" ", most), nil, wanted{status: 413, final: true, unread: true}},
		{"too large once decoded", "POST", encoded(r.t, good+strings.Repeat(" ", most), gzipped), []string{"Content-Encoding", "gzip"}, wanted{status: 413, final: true}},
		{"a long window", "POST", encoded(r.t, strings.Repeat(good, 9<<20/len(good)), zstded(16<<20)), []string{"Content-Encoding", "zstd"}, wanted{status: 400, final: true}},
		{"an unknown coding", "POST", good, []string{"Content-Encoding", "lzma"}, wanted{status: 415, final: true}},
		{"another coding", "POST", good, []string{"Content-Encoding", "gzip"}, wanted{status: 400, final: true}},
		{"an unknown model", "POST", strings.Replace(good, `"m"`, `"nope"`, 1), nil, wanted{status: 404, final: true}},
		{"no deadline", "POST", good, []string{access.DeadlineHeader, "soon"}, wanted{status: 400, final: true}},
		{"the wrong method", "GET", "", nil, wanted{status: 405, final: true}},
		{"its own request", "POST", good, []string{"User-Agent", AgentOf("")}, wanted{status: 508, final: true}},
	} {
		got := r.ask(g, x.method, d.Path, x.body, x.headers...)
		r.check(x.name, d, got, x.wanted)
		if x.status == 405 && got.header.Get("Allow") != "POST" {
			r.t.Errorf("%s: Allow is %q", d.Path, got.header.Get("Allow"))
		}
	}
	r.check("malformed HTTP", d, r.raw(g, d, "Content-Length: x\r\n\r\n"), wanted{status: 400, final: true, unread: true})
	r.check("malformed chunks", d, r.raw(g, d, "Transfer-Encoding: chunked\r\n\r\nx\r\n"), wanted{status: 400, final: true})

	if d.Split && !d.Native {
		short := alone(r.t)
		short.URL = listing(r.t, `{"data":[{"id":"m","max_model_len":4}]}`)
		bound := `,"` + d.Limits()[0] + `":5`
		if strings.Contains(good, bound) {
			bound = ""
		}
		g = run(r.t, usual(r.t), complete().roundTrip, short)
		r.check("an answer longer than the context", d, r.ask(g, "POST", d.Path, promptOf(d, bound)), wanted{status: 400, final: true})
	}

	slow := usual(r.t)
	slow.config = func(c *Config) { c.ReadTimeout = 50 * time.Millisecond }
	g = run(r.t, slow, complete().roundTrip, native(d, alone(r.t)))
	r.check("a body that stops coming", d, r.raw(g, d, "Content-Length: 200\r\n\r\n{"), wanted{status: 408, unread: true})
	r.check("a long body that stops coming", d, r.raw(g, d, "Content-Length: 20000\r\n\r\n"+strings.Repeat("{", prefetched+1)), wanted{status: 408})

	stopped := run(r.t, usual(r.t), func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}, native(d, alone(r.t)))
	answered := make(chan reply)
	go func() { answered <- r.ask(stopped, "POST", d.Path, good) }()
	eventually(r.t, "it is in flight", func() bool { _, n := stopped.queue.Len(); return n == 1 })
	ctx, cancel := context.WithTimeout(r.t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = stopped.stop(ctx)
	r.check("a drain", d, <-answered, wanted{status: 503, wait: true})

	full := usual(r.t)
	full.config = func(c *Config) { c.MaxArriving = 1 }
	g = run(r.t, full, complete().roundTrip, native(d, alone(r.t)))
	r.check("no room for bodies", d, r.ask(g, "POST", d.Path, good+strings.Repeat(" ", 2*freeBytes)), wanted{status: 503, wait: true})
}

// raw sends a message of an API that goes on with this, and reads the answer.
func (r *refusals) raw(g *running, d *api.Dialect, message string) reply {
	r.t.Helper()
	back := g.say("POST " + d.Path + " HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine-7\r\n" + message)
	head, body, _ := strings.Cut(back, "\r\n\r\n")
	got := reply{header: http.Header{}, body: body}
	lines := strings.Split(head, "\r\n")
	if _, err := fmt.Sscanf(lines[0], "HTTP/1.1 %d", &got.status); err != nil {
		r.t.Errorf("%.60q: %q", message, back)
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		got.header.Add(name, value)
	}
	return got
}

// withKeys are refusals that keys make.
func (r *refusals) withKeys(d *api.Dialect) {
	good := promptOf(d, "")
	inEachAPI := strings.TrimSuffix(completion, "}") + `,"output":[],"content":[]}`
	g := run(r.t, usual(r.t, "ada requests-per-minute=1", "eve prompt-tokens-per-minute=1", "bob models=[other]"), (&engines{answer: response(200, "application/json", inEachAPI)}).roundTrip, native(d, alone(r.t)))
	r.check("no key", d, r.ask(g, "POST", d.Path, good), wanted{status: 401, final: true})
	r.check("a wrong key", d, r.ask(g, "POST", d.Path, good, as("mallory")...), wanted{status: 401, final: true})
	r.check("a key for other models", d, r.ask(g, "POST", d.Path, good, as("bob")...), wanted{status: 404, final: true})
	if d == api.Messages { // an engine that is not known drops its salt
		r.check("no way to keep tenants apart", d, r.ask(g, "POST", d.Path, good, as("ada")...), wanted{status: 400, final: true})
		spec := alone(r.t)
		spec.URL = listing(r.t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
		g = run(r.t, usual(r.t, "ada requests-per-minute=1", "eve prompt-tokens-per-minute=1"), (&engines{answer: response(200, "application/json", chat)}).roundTrip, spec)
		spoiled := `data: {"id":"1","model":"m","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}` + "\n\n" +
			`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}` + "\n\n"
		translated := run(r.t, usual(r.t, "ada"), (&engines{answer: response(200, "text/event-stream", spoiled)}).roundTrip, spec)
		r.checkBroken("has an event that means nothing", d, r.ask(translated, "POST", d.Path, promptOf(d, `,"stream":true`), as("ada")...), "api_error")
		r.check("no chat means the same", d, r.ask(g, "POST", d.Path, strings.Replace(good, `"`+secretPrompt+`"`, "7", 1), as("ada")...), wanted{status: 400, final: true})
	}
	r.ask(g, "POST", d.Path, good, as("ada")...)
	r.check("a quota", d, r.ask(g, "POST", d.Path, good, as("ada")...), wanted{status: 429, wait: true})
	if d.Split {
		r.check("more than a quota", d, r.ask(g, "POST", d.Path, good, as("eve")...), wanted{status: 429, final: true})
	}
}

// byEngines are refusals that engines cause.
func (r *refusals) byEngines(d *api.Dialect) {
	good := promptOf(d, "")
	said := `{"error":{"message":"engine at ` + secretAddress + ` failed on ` + secretPrompt + `","type":"InternalServerError","param":null,"code":500}}`
	odd := `{"error":{"message":"too odd","type":"BadRequestError","param":null,"code":400}}`
	answers := func(status int, body string) roundTripper {
		return (&engines{answer: response(status, "application/json", body)}).roundTrip
	}
	fails := func(err error) roundTripper {
		return func(*http.Request) (*http.Response, error) { return nil, err }
	}
	silent := func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	lost := func(op string) error {
		return &net.OpError{Op: op, Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 11, 12, 13), Port: 5600}, Err: syscall.ECONNRESET}
	}
	for _, x := range []struct {
		name string
		legs roundTripper
		wanted
	}{
		{"an engine's 400", answers(400, odd), wanted{status: 400, final: true, own: true}},
		{"an engine's flat 422", answers(422, `{"object":"error","message":"too odd"}`), wanted{status: 422, final: true}},
		{"an engine's 404 of no text", answers(404, ``), wanted{status: 404, final: true}},
		{"an engine's 401", answers(401, said), wanted{status: 401, final: true}},
		{"an engine's 500", answers(500, said), wanted{status: 502}},
		{"an engine's redirection", answers(302, said), wanted{status: 502}},
		{"an engine's 429", answers(429, said), wanted{status: 503, wait: true}},
		{"an engine's 503", answers(503, said), wanted{status: 503, wait: true}},
		{"no JSON", answers(200, secretAddress), wanted{status: 502}},
		{"a connection refused", fails(lost("dial")), wanted{status: 503, wait: true}},
		{"a connection reset", fails(lost("read")), wanted{status: 502}},
		{"no answer in time", silent, wanted{status: 504}},
		{"a panic", func(*http.Request) (*http.Response, error) { panic("at " + secretAddress) }, wanted{status: 500}},
	} {
		g := run(r.t, usual(r.t), x.legs, native(d, alone(r.t)))
		if x.status == 504 {
			g.pd.Config.AnswerTimeout = 50 * time.Millisecond
		}
		r.check(x.name, d, r.ask(g, "POST", d.Path, good), x.wanted)
	}
	nobody := run(r.t, usual(r.t), complete().roundTrip)
	if !d.Native {
		r.check("no servers", d, r.ask(nobody, "POST", d.Path, good), wanted{status: 503, wait: true})
	}
	pair := alone(r.t)
	pair.Connector = "sglang"
	pairs := run(r.t, usual(r.t), complete().roundTrip, pair)
	switch d {
	case api.Chat, api.Completions:
		r.check("several answers of a pair that gives one", d, r.ask(pairs, "POST", d.Path, promptOf(d, `,"n":2`)), wanted{status: 400, final: true})
	case api.Messages, api.Responses:
		r.check("what no pair takes", d, r.ask(pairs, "POST", d.Path, good), wanted{status: 400, final: true})
	}
}

// badBodies are bodies that are read, and refused before any engine sees them.
func (r *refusals) badBodies() {
	g := run(r.t, usual(r.t, "ada max-samples=2 max-output-tokens=16"), complete().roundTrip, native(api.Generate, pools.Spec{
		URL: listing(r.t, `{"data":[{"id":"m","max_model_len":10}]}`), Role: pools.Both, Connector: "nixl",
	}))
	chat := func(more string) string { return promptOf(api.Chat, more) }
	generate := func(more string) string { return promptOf(api.Generate, more) }
	many := func(n int, form string) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, form, i)
		}
		return text.String()
	}
	for _, x := range []struct {
		d    *api.Dialect
		body string
	}{
		{api.Chat, `[1]`},
		{api.Chat, `{"model":"\xff"}`},
		{api.Chat, chat(`,"a":1,"a":2`)},
		{api.Chat, chat(many(1100, `,"a%d":1`))},
		{api.Chat, chat(`,"a":` + strings.Repeat("[", 300) + strings.Repeat("]", 300))},
		{api.Chat, chat(`,"extra_body":` + strings.Repeat(`{"extra_body":`, 9) + `1` + strings.Repeat(`}`, 9))},
		{api.Chat, chat(`,"extra_body":{"a":1,"a":2}`)},
		{api.Chat, chat(`,"extra_body":[` + strings.Repeat("{},", 1100) + `1]`)},
		{api.Chat, `{"model":7,"messages":[{}]}`},
		{api.Chat, `{"model":"m"}`},
		{api.Chat, `{"model":"m","messages":"` + secretPrompt + `"}`},
		{api.Chat, `{"model":"m","messages":[]}`},
		{api.Chat, `{"model":"m","messages":[{"role":"user","content":[{"image_url":null,"uuid":"` + secretPrompt + `"}]}]}`},
		{api.Responses, `{"model":"m","input":7}`},
		{api.Chat, chat(`,"max_tokens":"` + secretPrompt + `"`)},
		{api.Chat, chat(`,"max_tokens":5,"min_tokens":6`)},
		{api.Chat, chat(`,"max_tokens":17`)},
		{api.Chat, chat(`,"max_tokens":11`)},
		{api.Chat, chat(`,"stream":"` + secretPrompt + `"`)},
		{api.Chat, chat(`,"stream_options":{"include_usage":true}`)},
		{api.Chat, chat(`,"stream":true,"stream_options":7`)},
		{api.Chat, chat(`,"n":0`)},
		{api.Chat, chat(`,"n":3`)},
		{api.Chat, chat(`,"logit_bias":7`)},
		{api.Responses, promptOf(api.Responses, `,"previous_response_id":"`+secretPrompt+`"`)},
		{api.Responses, promptOf(api.Responses, `,"conversation":"`+secretPrompt+`"`)},
		{api.Responses, promptOf(api.Responses, `,"prompt":{"id":"`+secretPrompt+`"}`)},
		{api.Responses, promptOf(api.Responses, `,"background":true`)},
		{api.Generate, generate(`,"input_ids":[1]`)},
		{api.Generate, `{"text":7}`},
		{api.Generate, generate(`,"stream":7`)},
		{api.Generate, generate(`,"sampling_params":[{},{}]`)},
		{api.Generate, generate(`,"sampling_params":{"n":0}`)},
		{api.Generate, generate(`,"sampling_params":[7]`)},
		{api.Generate, generate(``)},
	} {
		body := strings.ReplaceAll(x.body, `\xff`, "\xff")
		r.check(body[:min(len(body), 80)], x.d, r.ask(g, "POST", x.d.Path, body, as("ada")...), wanted{status: 400, final: true})
	}
	r.check("no class", api.Chat, r.ask(g, "POST", api.Chat.Path, chat(""), "Authorization", "Bearer sk-ada", access.PriorityHeader, "none"), wanted{status: 400, final: true})
}

// withoutAPath are refusals that no API's own handler makes: they have the shape of the client's.
func (r *refusals) withoutAPath() {
	g := run(r.t, usual(r.t, "ada"), complete().roundTrip, alone(r.t))
	for _, d := range []*api.Dialect{api.Chat, api.Messages} {
		var headers []string
		if d.Anthropic {
			headers = []string{"Anthropic-Version", "2023-06-01"}
		}
		for path, status := range map[string]int{"/v1/nothing": 404, "/": 404, "/v1/v1/models": 404, "/v1/models": 401, "/v1/models/m": 401, "/v1/responses/1": 401} {
			r.check("GET "+path, d, r.ask(g, "GET", path, "", headers...), wanted{status: status, final: true})
		}
		r.check("POST /v1/models", d, r.ask(g, "POST", "/v1/models", "{}", headers...), wanted{status: 405, final: true})
		headers = append(headers, as("ada")...)
		r.check("an unknown model", d, r.ask(g, "GET", "/v1/models/nope", "", headers...), wanted{status: 404, final: true})
		r.check("a response of before", d, r.ask(g, "GET", "/v1/responses/1", "", headers...), wanted{status: 404, final: true})
	}
	r.check("below messages", api.Messages, r.ask(g, "POST", "/v1/messages/batches", "{}"), wanted{status: 404, final: true})
	r.check("a native path that nobody speaks", api.Chat, r.ask(g, "POST", api.Generate.Path, "{}"), wanted{status: 404, final: true})
}

// clientText is a text that the code may say to clients.
type clientText struct {
	at   string
	form *regexp.Regexp // what it is with anything in its places
}

// unseenTexts are those that no client of a test can be told.
var unseenTexts = []string{
	"The request headers are too large.",                      // framing refuses such a head before fasthttp does
	"there is nothing at a path that begins with two slashes", // they are told what they are of every path
	"malformed JSON: a key is not a valid string",             // the scanner of the whole body finds it first
}

// texts reads out of the source all that clients can be told: what stands in the places that
// make an error, or a stream's end.
func texts(t *testing.T) (all []clientText) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	errorsToo := []string{"control.go", "../pd/api/body_parse.go", "../kvstate/jsonscan/scanner.go"} // whose errors clients are told
	for _, name := range append(files, errorsToo[1:]...) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		take := func(value ast.Expr) {
			form := formOf(value)
			if len(strings.ReplaceAll(form, ".*", "")) < 8 || slices.ContainsFunc(unseenTexts, regexp.MustCompile("^"+form+"$").MatchString) {
				return
			}
			all = append(all, clientText{set.Position(value.Pos()).String(), regexp.MustCompile(form)})
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, value := range saidBy(n, slices.Contains(errorsToo, name)) {
				take(value)
			}
			return true
		})
	}
	if len(all) < 70 {
		t.Errorf("only %d texts are found", len(all))
	}
	return all
}

// saidBy are the values in the places of a node that clients get to see.
func saidBy(n ast.Node, errorsToo bool) (values []ast.Expr) {
	named := func(e ast.Expr, names ...string) bool {
		if s, ok := e.(*ast.SelectorExpr); ok {
			e = s.Sel
		}
		id, ok := e.(*ast.Ident)
		return ok && slices.Contains(names, id.Name)
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		switch {
		case named(n.Fun, "invalid", "unavailable"):
			values = append(values, n.Args[1])
		case named(n.Fun, "malformed", "unauthorized"), errorsToo && named(n.Fun, "New", "Errorf"):
			values = append(values, n.Args[0])
		}
	case *ast.KeyValueExpr:
		if named(n.Key, "Message", "message", "why") {
			values = append(values, n.Value)
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if named(left, "Message", "message") && len(n.Rhs) == len(n.Lhs) {
				values = append(values, n.Rhs[i])
			}
		}
	}
	return values
}

// formOf is the regular expression of what a value can be: its literals, with anything between
// them.
func formOf(value ast.Expr) string {
	switch v := value.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(v.Value)
		return regexp.MustCompile(`%[a-z]`).ReplaceAllString(regexp.QuoteMeta(text), ".*")
	case *ast.BinaryExpr:
		return formOf(v.X) + formOf(v.Y)
	case *ast.CallExpr: // of Sprintf
		if len(v.Args) > 0 {
			return formOf(v.Args[0])
		}
	}
	return ".*"
}
