package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/pd/api"
)

// beginnings are what the engine of each streaming API sends before a stream breaks.
var beginnings = map[*api.Dialect]string{
	api.Chat:        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n",
	api.Completions: "data: {\"choices\":[{\"index\":0,\"text\":\"Hi\",\"finish_reason\":null}]}\n\n",
	api.Responses: "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\"}}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":6,\"delta\":\"say \\\"sequence_number\\\":70\"}\n\n",
	api.Messages: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":0}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
	api.Generate: "data: {\"text\":\"Hi\",\"meta_info\":{\"prompt_tokens\":2,\"completion_tokens\":1,\"finish_reason\":null}}\n\n",
}

// errorEvents are what engines say of a failure of their own, in each API's way.
var errorEvents = map[*api.Dialect]string{
	api.Responses: "event: error\ndata: {\"type\":\"error\",\"code\":\"500\",\"message\":\"" + secretPrompt + " at " + secretAddress + "\"}\n\n",
	api.Messages:  "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"" + secretPrompt + " at " + secretAddress + "\"}}\n\n",
}

func errorEventOf(d *api.Dialect) string {
	if said := errorEvents[d]; said != "" {
		return said
	}
	return "data: {\"error\":{\"message\":\"" + secretPrompt + " at " + secretAddress + "\",\"type\":\"InternalServerError\",\"code\":500}}\n\n"
}

// then is a body that ends with what a test does.
type then struct {
	text io.Reader
	end  func() error
}

func (b then) Read(p []byte) (int, error) {
	if n, err := b.text.Read(p); err == nil {
		return n, nil
	}
	return 0, b.end()
}

func (then) Close() error { return nil }

// A stream that breaks after its first event ends with one event that says so in the shape of
// its API, and then with the connection, not cleanly; one that breaks before has an answer like
// any refusal.
func TestRefusals_StreamsEndInTheShapeOfTheirAPI(t *testing.T) {
	t.Parallel()
	r := &refusals{t: t}
	for d, beginning := range beginnings {
		for _, x := range []struct {
			name   string
			more   string // behind the beginning
			end    func(context.Context) error
			status int    // before the first event; 0: it does not come to that
			kind   string // Anthropic's
		}{
			{"is cut off", "", func(context.Context) error { return io.EOF }, 502, "api_error"},
			{"is reset", "", func(context.Context) error { return errors.New("read " + secretAddress) }, 502, "api_error"},
			{"ends with the engine's error", errorEventOf(d), func(context.Context) error { return io.EOF }, 502, "api_error"},
			{"goes silent", "", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 504, "api_error"},
			{"panics", "", func(context.Context) error { panic("at " + secretAddress) }, 500, "api_error"},
		} {
			legs := func(text string) roundTripper {
				return func(req *http.Request) (*http.Response, error) {
					end := func() error { return x.end(req.Context()) }
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: then{strings.NewReader(text), end}}, nil
				}
			}
			ask := func(text string) reply {
				g := run(t, usual(t), legs(text), native(d, alone(t)))
				if x.status == 504 {
					g.pd.Config.IdleTimeout, g.pd.Config.FirstEventTimeout = 50*time.Millisecond, 50*time.Millisecond
				}
				return r.ask(g, "POST", d.Path, promptOf(d, `,"stream":true`))
			}
			r.check("a stream that "+x.name+" at once", d, ask(x.more), wanted{status: x.status})
			r.checkBroken(x.name, d, ask(beginning+x.more), x.kind)
		}
		r.drained(d, beginning)
	}
}

// drained is a stream that a shutdown does not wait for any longer.
func (r *refusals) drained(d *api.Dialect, beginning string) {
	g := run(r.t, usual(r.t), func(req *http.Request) (*http.Response, error) {
		end := func() error { <-req.Context().Done(); return req.Context().Err() }
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: then{strings.NewReader(beginning), end}}, nil
	}, native(d, alone(r.t)))
	answered := make(chan reply)
	go func() { answered <- r.ask(g, "POST", d.Path, promptOf(d, `,"stream":true`)) }()
	eventually(r.t, "it is in flight", func() bool { _, n := g.queue.Len(); return n == 1 })
	ctx, cancel := context.WithTimeout(r.t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = g.stop(ctx)
	r.checkBroken("is drained", d, <-answered, "overloaded_error")
}

// checkBroken holds the end of a stream to what its API has for it.
func (r *refusals) checkBroken(name string, d *api.Dialect, got reply, kind string) {
	r.t.Helper()
	events := strings.Split(strings.TrimSuffix(got.body, "\n\n"), "\n\n")
	last := events[len(events)-1]
	wrong := func(format string, args ...any) {
		r.t.Helper()
		r.t.Errorf("%s: a stream that %s: "+format+": %d %q, %v", append(append([]any{d.Path, name}, args...), got.status, got.body, got.err)...)
	}
	if got.status != 200 || got.err == nil || !strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") || len(events) < 2 {
		wrong("it passes for a whole one")
	}
	event, text := "", last
	if before, after, named := strings.Cut(last, "\n"); named {
		event, text = strings.TrimPrefix(before, "event: "), after
	}
	data := gjson.Parse(strings.TrimPrefix(text, "data: "))
	r.said = append(r.said, data.Get("error.message").String())
	switch d {
	case api.Messages:
		checkAnthropic(wrong, data, got.header, kind)
		if event != "error" {
			wrong("event %q", event)
		}
	case api.Responses: // openai 3.54 types/responses/response_error_event.py
		if event != "error" || data.Get("type").String() != "error" || data.Get("sequence_number").Raw != "7" || data.Get("message").String() == "" ||
			!data.Get("code").Exists() || !data.Get("param").Exists() || data.Get("error.message").String() != data.Get("message").String() {
			wrong("no event of Responses")
		}
	default:
		if event != "" {
			wrong("event %q", event)
		}
		checkOpenAI(wrong, data)
	}
	r.leaks(wrong, got.body)
}
