package picker

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd"
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

// Picks of prompts of 220 KB, from the headers to the last piece of the body, and their answers of
// one piece. The proxy is another process: what is reported as cpu-us/op is the picker's processor
// time alone, with gRPC and TLS in it, and pick-us-p50 and -p99 are from the last piece of the body
// to the answer that names the servers, as the proxy sees it. The budget is 500 us of one core
// (docs/gateway-api.md). Each prompt is new, or the second time that it comes.
func BenchmarkPick220KB(b *testing.B) {
	for _, c := range []struct {
		name      string
		mode      tokens.Mode // "": of no prompt is known what servers hold
		encrypted bool
	}{{"load", "", false}, {"approximate", tokens.Approximate, false}, {"learned", tokens.Learned, false}, {"approximate,tls", tokens.Approximate, true}} {
		b.Run(c.name, func(b *testing.B) {
			f := newPicker(b, setup{specs: eightServers(b), config: Config{Fallbacks: 2}, encrypted: c.encrypted, pd: func(o *pd.Orchestrator) {
				if c.mode == "" {
					return
				}
				index, err := kvstate.New(kvstate.Default())
				if err != nil {
					b.Fatal(err)
				}
				o.Binder.Locality = pd.NewLocality(index, func(model string) (*tokens.Source, error) {
					cfg := tokens.Default()
					cfg.Mode, cfg.Model = c.mode, model
					return tokens.New(cfg, nil, nil)
				})
				b.Cleanup(o.Binder.Locality.Close)
			}})
			f.eventually("all servers are up", func() bool {
				return !slices.ContainsFunc(f.fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up })
			})
			proxy := startBenchProxy(b, f)
			proxy.picks(b, 20)
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			half, most := proxy.picks(b, b.N)
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			b.ReportMetric(half, "pick-us-p50")
			b.ReportMetric(most, "pick-us-p99")
		})
	}
}

// eightServers are four of each role.
func eightServers(b *testing.B) (specs []pools.Spec) {
	for i := range 8 {
		role := pools.Prefill
		if i >= 4 {
			role = pools.Decode
		}
		specs = append(specs, pools.Spec{URL: upServer(b), Role: role, Connector: "llmd-sidecar"})
	}
	return specs
}

// processorTime is what this process has used of processors.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
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
