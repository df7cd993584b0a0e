package picker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd/queue"
)

// A request that gets no server is answered in the shape of its API, with the status that the
// protocol has for it; it holds nothing, and the next one is served.
func TestPicker_Refuses(t *testing.T) {
	keys, err := access.ReadKeys([]byte("secret: 0123456789abcdef0123456789abcdef\nkeys:\n  - sha256: "+access.Hash("sk-ada")+"\n    tenant: ada\n"), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path, body string
		header     []string
		setup      func(*setup)
		status     int
		code       string
	}{
		"malformed JSON":                     {path: chatPath, body: `{"model":`, status: 400},
		"no such model":                      {path: chatPath, body: `{"model":"other","messages":[{"role":"user","content":"a"}]}`, status: 404, code: "model_not_found"},
		"no such path":                       {path: "/v1/audio/speech", body: `{}`, status: 404, code: "not_found"},
		"a body that is large":               {path: chatPath, body: strings.Repeat("x", 3000), setup: func(s *setup) { s.gateway = func(c *gateway.Config) { c.MaxBody = 2048 } }, status: 413, code: "request_too_large"},
		"a body that says that it is large":  {path: chatPath, body: "{}", header: []string{"content-length", "3000"}, setup: func(s *setup) { s.gateway = func(c *gateway.Config) { c.MaxBody = 2048 } }, status: 413, code: "request_too_large"},
		"a body that is longer than it says": {path: chatPath, body: strings.Repeat("x", 3000), header: []string{"content-length", "10"}, setup: func(s *setup) { s.gateway = func(c *gateway.Config) { c.MaxBody = 2048 } }, status: 413, code: "request_too_large"},
		"many bodies":                        {path: chatPath, body: strings.Repeat("x", 200_000), setup: func(s *setup) { s.gateway = func(c *gateway.Config) { c.MaxArriving = 100_000 } }, status: 429, code: "overloaded"},
		"no key":                             {path: chatPath, body: string(chatOf(10, "")), setup: func(s *setup) { s.access = access.New(access.DefaultConfig(), nil); s.access.Apply(keys) }, status: 401, code: "invalid_api_key"},
		"an empty body":                      {path: chatPath, body: "", status: 400},
		"a coding of no kind":                {path: chatPath, body: "x", header: []string{"content-encoding", "lzma"}, status: 415},
	} {
		of := setup{decode: 1}
		if c.setup != nil {
			c.setup(&of)
		}
		f := newPicker(t, of)
		p := f.open()
		p.request(c.path, []byte(c.body), c.header...)
		got := p.routing().refused
		if got == nil {
			t.Errorf("%s: it has a server", name)
			continue
		}
		if status := int(got.GetStatus().GetCode()); status != c.status || gjson.GetBytes(got.GetBody(), "error.code").String() != c.code && c.code != "" ||
			gjson.GetBytes(got.GetBody(), "error.message").String() == "" {
			t.Errorf("%s: %d %s", name, status, got.GetBody())
		}
		f.nothingHeld()
	}
}

// Without a server that could take it a request is refused with 503, and with 429 where there are
// some and no place: a proxy takes the one for a failure, and the other for load.
func TestPicker_NobodyIsReadyAndSheddingAreTwoAnswers(t *testing.T) {
	f := newPicker(t, setup{decode: 1, queue: queue.Config{MaxInFlight: 1, MaxWaiting: 0, MaxBytes: 1 << 30, MaxWait: time.Second}})
	first := f.open()
	first.request(chatPath, chatOf(10, ""))
	if to := first.routing(); to.refused != nil {
		t.Fatalf("the first is refused: %s", to.refused.GetBody())
	}
	second := f.open()
	second.request(chatPath, chatOf(10, ""))
	shed := second.routing().refused
	if shed == nil || shed.GetStatus().GetCode() != 429 || gjson.GetBytes(shed.GetBody(), "error.code").String() != "overloaded" {
		t.Errorf("the second gets %v", shed)
	}
	if !slices.ContainsFunc(shed.GetHeaders().GetSetHeaders(), func(h *headerOption) bool { return h.GetHeader().GetKey() == "retry-after" }) {
		t.Error("a client that was shed is not told when to come again")
	}
	first.cancel()
	f.nothingHeld()
	f.fleet.Servers()[0].MarkDown("test")
	f.pd.Binder.Config.UnresponsiveWait = 0
	third := f.open()
	third.request(chatPath, chatOf(10, ""))
	if none := third.routing().refused; none == nil || none.GetStatus().GetCode() != 503 {
		t.Errorf("without a server it gets %v", none)
	}
	f.nothingHeld()
}

// Whenever a stream ends without a word, what its request held is given back.
func TestPicker_AStreamThatEndsWithoutAWord(t *testing.T) {
	for name, upTo := range map[string]func(*proxied){
		"before its body": func(p *proxied) { p.begin(chatPath) },
		"amid its body":   func(p *proxied) { p.begin(chatPath); p.bodyPiece([]byte(`{"model":`), false) },
		"with its server": func(p *proxied) { p.request(chatPath, chatOf(10, "")); p.routing() },
		"amid its answer": func(p *proxied) {
			p.request(chatPath, chatOf(10, `,"stream":true`))
			p.routing()
			p.head("200", "text/event-stream")
			p.piece([]byte(eventOf("a")), false)
			p.receive()
		},
		"as soon as it comes": func(p *proxied) { p.request(chatPath, chatOf(10, "")) },
	} {
		for _, cancel := range []bool{false, true} {
			f := newPicker(t, setup{decode: 1})
			p := f.open()
			upTo(p)
			if cancel {
				p.cancel()
			} else if err := p.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			f.nothingHeld()
			if !cancel { // else it may not even have come
				f.eventually(name+": it is counted as left", func() bool { return f.requests("client_gone") == 1 })
			}
			again := f.open()
			again.request(chatPath, chatOf(10, ""))
			if to := again.routing(); to.refused != nil {
				t.Errorf("%s: the next is refused: %s", name, to.refused.GetBody())
			}
		}
	}
}

// A client that leaves while its request waits for a place ends the wait at once.
func TestPicker_AClientThatLeavesWhileItWaits(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		f := newPicker(t, setup{decode: 1, queue: queue.Config{MaxInFlight: 1, MaxWaiting: 10, MaxBytes: 1 << 30, MaxWait: time.Hour}})
		first := f.open()
		first.request(chatPath, chatOf(10, ""))
		first.routing()
		second := f.open()
		second.request(chatPath, chatOf(10, ""))
		f.eventually("it waits", func() bool { waiting, _ := f.queue.Len(); return waiting == 1 })
		if cancel {
			second.cancel()
		} else if err := second.stream.CloseSend(); err != nil { // as Envoy ends a stream in order
			t.Fatal(err)
		}
		f.eventually("it waits no more", func() bool { waiting, _ := f.queue.Len(); return waiting == 0 })
	}
}

// A panic ends the request that it happened in, and no other; it holds nothing.
func TestPicker_APanicEndsOneRequest(t *testing.T) {
	panics := true
	f := newPicker(t, setup{decode: 1, before: func(s *gateway.Server) {
		s.SetObserver(func(gateway.Arrival) gateway.Observation {
			if panics {
				panic("in a request")
			}
			return observed{}
		})
	}})
	p := f.open()
	p.request(chatPath, chatOf(10, ""))
	if m, err := p.stream.Recv(); err == nil {
		t.Errorf("it gets %v", m)
	} else if strings.Contains(err.Error(), "in a request") {
		t.Errorf("the proxy is told of it: %v", err)
	}
	f.nothingHeld()
	if n := f.requests("error"); n != 1 {
		t.Errorf("%v are counted", n)
	}
	panics = false
	again := f.open()
	again.request(chatPath, chatOf(10, ""))
	if to := again.routing(); to.refused != nil {
		t.Errorf("the next is refused: %s", to.refused.GetBody())
	}
}

type observed struct{}

func (observed) RecordFirstToken(int, int) {}
func (observed) RecordEnd(int, bool)       {}
func (observed) RecordRefusal()            {}

// A shutdown takes no more requests and waits for those that have their server.
func TestPicker_ShutdownWaitsForRequests(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.request(chatPath, chatOf(10, ""))
	to := p.routing()
	down := make(chan struct{})
	go func() {
		defer close(down)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		f.picker.Shutdown(ctx)
	}()
	f.eventually("it takes no more", func() bool { return f.picker.draining.Load() })
	if got := p.answer(p.forward(to, chatPath), 1000); len(got) == 0 {
		t.Error("the answer is gone")
	}
	<-down
	f.nothingHeld()
}

// A request that stops coming has no answer to lose, nor has a client that watches the picker's health: a shutdown does
// not take all of its time for them.
func TestPicker_ShutdownWaitsForNothingThatStopsComing(t *testing.T) {
	for what, open := range map[string]func(t *testing.T, f *pickerFixture){
		"no message": func(_ *testing.T, f *pickerFixture) { f.open() },
		"a part of a body": func(_ *testing.T, f *pickerFixture) {
			p := f.open()
			p.begin(chatPath)
			p.bodyPiece([]byte(`{"model":`), false)
		},
		"a health check": func(t *testing.T, f *pickerFixture) {
			watch, err := healthpb.NewHealthClient(f.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
			if err == nil {
				_, err = watch.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newPicker(t, setup{decode: 1})
			open(t, f)
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
			defer cancel()
			began := time.Now()
			f.picker.Shutdown(ctx)
			if took := time.Since(began); took > 25*time.Second {
				t.Errorf("it took %v", took)
			}
			f.nothingHeld()
		})
	}
}

// What cannot wait any longer is cut off when the time of a shutdown is over.
func TestPicker_ShutdownEndsWhatDoesNotEnd(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.request(chatPath, chatOf(10, ""))
	p.routing()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	f.picker.Shutdown(ctx)
	f.nothingHeld()
}

// An answer that is no success counts against its server, also where Envoy gave it because it
// reached none.
func TestPicker_AnswersThatFailAreCounted(t *testing.T) {
	for _, c := range []struct{ status, body, outcome string }{
		{"500", `{"error":{"message":"no memory"}}`, "error"},
		{"400", `{"error":{"message":"bad"}}`, "refused"},
		{"429", `{}`, "overloaded"},
		{"503", "upstream connect error or disconnect/reset before headers. reset reason: connection termination", "no_server"},
	} {
		f := newPicker(t, setup{decode: 1})
		p := f.open()
		p.request(chatPath, chatOf(10, ""))
		p.routing()
		p.head(c.status, "application/json")
		p.piece([]byte(c.body), true)
		if got := string(p.rest()); got != c.body {
			t.Errorf("%s: the client gets %q", c.status, got)
		}
		f.nothingHeld()
		f.eventually(c.status+" is counted", func() bool { return f.requests(c.outcome) == 1 })
	}
}

// A stream that Envoy cuts short is a broken one.
func TestPicker_AStreamThatBreaksIsCounted(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.request(chatPath, chatOf(10, `,"stream":true`))
	p.routing()
	p.head("200", "text/event-stream")
	p.piece([]byte(eventOf("a")+"data: {"), true)
	if got := string(p.rest()); got != eventOf("a")+"data: {" {
		t.Errorf("the client gets %q", got)
	}
	f.nothingHeld()
	f.eventually("it is counted", func() bool { return f.requests("broken_stream") == 1 })
}
