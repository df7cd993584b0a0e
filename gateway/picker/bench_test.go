package picker

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-gateway/tandem/pools"
)

// upServer is the address of a server that answers probes.
func upServer(tb testing.TB) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
		}
	}))
	tb.Cleanup(s.Close)
	return s.URL
}

// A pick of a prompt of 220 KB, from its headers to the last piece of its body, and its answer of
// one piece, over a connection of this process: the proxy's half of the work is in the number. The
// budget is 0.5 ms of one core (docs/gateway-api.md).
func BenchmarkPick220KB(b *testing.B) {
	var specs []pools.Spec
	for i := range 8 {
		role := pools.Prefill
		if i >= 4 {
			role = pools.Decode
		}
		specs = append(specs, pools.Spec{URL: upServer(b), Role: role, Connector: "llmd-sidecar"})
	}
	f := newPicker(b, setup{specs: specs, config: Config{Fallbacks: 2}})
	f.eventually("all servers are up", func() bool {
		for _, s := range f.fleet.Servers() {
			if !s.Health().Up {
				return false
			}
		}
		return true
	})
	body := chatOf(220_000, "")
	head := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerList(":method", "POST", ":path", chatPath, ":authority", "gateway", "content-type", "application/json", "user-agent", "OpenAI/Python 2.1"),
	}}}
	answer := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50000,"completion_tokens":1}}`)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := f.client.Process(ctx)
		if err != nil {
			b.Fatal(err)
		}
		p := &proxied{f: f, stream: stream, cancel: cancel}
		p.send(head)
		p.body(body)
		if to := p.routing(); to.refused != nil {
			b.Fatalf("%s", to.refused.GetBody())
		}
		p.head("200", "application/json")
		p.piece(answer, true)
		p.rest()
		cancel()
	}
}

// A piece of a streamed answer, there and back over a connection of this process. The budget is
// 5 us of the picker's own work, of which BenchmarkAnswerPiece is the part that is ours.
func BenchmarkAnswerPieceOverGRPC(b *testing.B) {
	f, p := streamingExchange(b)
	event := []byte(eventOf("word"))
	b.ReportAllocs()
	for b.Loop() {
		p.piece(event, false)
		p.receive()
		p.messages = p.messages[:0]
	}
	_ = f
}

func streamingExchange(b *testing.B) (*pickerFixture, *proxied) {
	f := newPicker(b, setup{specs: []pools.Spec{{URL: upServer(b), Role: pools.Both, Connector: "aggregated"}}})
	f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
	p := f.open()
	p.request(chatPath, chatOf(10, `,"stream":true`))
	if to := p.routing(); to.refused != nil {
		b.Fatalf("%s", to.refused.GetBody())
	}
	p.head("200", "text/event-stream")
	return f, p
}

// BenchmarkAnswerPiece is what a piece of an answer costs without gRPC.
func BenchmarkAnswerPiece(b *testing.B) {
	f := newPicker(b, setup{specs: []pools.Spec{{URL: upServer(b), Role: pools.Both, Connector: "aggregated"}}})
	f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
	e, err := f.gateway.BeginPick(context.Background(), http.MethodPost, chatPath, headers(nil), shown(fullDuplex))
	if err != nil {
		b.Fatal(err)
	}
	defer e.End()
	if err := e.AddBody(chatOf(10, `,"stream":true`)); err != nil {
		b.Fatal(err)
	}
	pick, err := e.Pick(nil)
	if err != nil {
		b.Fatal(err)
	}
	pick.MarkSent()
	e.AnswerHead(200, http.Header{"Content-Type": {"text/event-stream"}}, "")
	event := []byte(strings.TrimSpace(eventOf("word")) + "\n\n")
	b.ReportAllocs()
	for b.Loop() {
		if out := e.AnswerPiece(event); len(out) != len(event) {
			b.Fatal("a piece is missing")
		}
	}
}
