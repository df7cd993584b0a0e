package picker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

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
		way       string // of the proxy; with keepsBodies it gets back what is changed alone
	}{
		{name: "load"}, {name: "approximate", mode: tokens.Approximate}, {name: "learned", mode: tokens.Learned},
		{name: "approximate,tls", mode: tokens.Approximate, encrypted: true},
		{name: "approximate,buffered", mode: tokens.Approximate, way: keepsBodies}, {name: "learned,buffered", mode: tokens.Learned, way: keepsBodies},
		{name: "approximate,buffered,tls", mode: tokens.Approximate, encrypted: true, way: keepsBodies},
		{name: "load,many", way: manyAtOnce},
		{name: "approximate,many", mode: tokens.Approximate, way: manyAtOnce}, {name: "learned,many", mode: tokens.Learned, way: manyAtOnce},
		{name: "approximate,buffered,many", mode: tokens.Approximate, way: keepsBodies + manyAtOnce},
		{name: "learned,buffered,many", mode: tokens.Learned, way: keepsBodies + manyAtOnce},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newBenchPicker(b, c.mode, c.encrypted)
			measurePicks(b, f.conn.Target(), c.encrypted, c.way)
		})
	}
	for _, way := range []string{"", keepsBodies, manyAtOnce, keepsBodies + manyAtOnce} {
		for _, encrypted := range []string{"", ",tls"} {
			b.Run("floor"+strings.ReplaceAll(way, "+", ",")+encrypted, func(b *testing.B) { measurePicks(b, startEcho(b, encrypted != ""), encrypted != "", way) })
		}
	}
}

// newBenchPicker is a picker of eight servers, of which a mode of tokens says what they hold: "" nothing.
func newBenchPicker(b *testing.B, mode tokens.Mode, encrypted bool) *pickerFixture {
	f := newPicker(b, setup{specs: eightServers(b), config: Config{Fallbacks: 2}, encrypted: encrypted, pd: knowsPrompts(b, mode, nil)})
	f.eventually("all servers are up", func() bool {
		return !slices.ContainsFunc(f.fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up })
	})
	return f
}

// knowsPrompts lets a picker know prompts in a mode of tokens, "" not at all; ask is for those that ask an engine.
func knowsPrompts(t testing.TB, mode tokens.Mode, ask tokens.Ask) func(o *pd.Orchestrator) {
	return func(o *pd.Orchestrator) {
		if mode == "" {
			return
		}
		index, err := kvstate.New(kvstate.Default())
		if err != nil {
			t.Fatal(err)
		}
		o.Binder.Locality = pd.NewLocality(index, func(model string) (*tokens.Source, error) {
			cfg := tokens.Default()
			cfg.Mode, cfg.Model, cfg.AskWait = mode, model, time.Millisecond
			return tokens.New(cfg, ask, nil)
		})
		t.Cleanup(o.Binder.Locality.Close)
	}
}

// BenchmarkPick220KBWithoutGRPC is what a pick of BenchmarkPick220KB costs without gRPC: the body comes in pieces of
// 16 KB, is read and hashed, and servers are chosen. pick-us-p50 and -p99 are from the last piece to the choice, of
// which the budget is 1 ms (docs/gateway-api.md), and cpu-us-p50 and -p99 what of that is processor time of its
// thread, which other processes hardly change. One pick is made at a time, with a pause as long as it took, so that
// the collector works beside it as in a picker that is half busy.
func BenchmarkPick220KBWithoutGRPC(b *testing.B) {
	for _, mode := range []tokens.Mode{"", tokens.Approximate, tokens.Learned} {
		b.Run("tokens="+string(mode), func(b *testing.B) {
			f := newBenchPicker(b, mode, false)
			prompts := make([][]byte, 64)
			for i := range prompts {
				prompts[i] = benchPrompt(i)
			}
			collectRarely(b)
			b.SetBytes(int64(len(prompts[0])))
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var took, used []time.Duration
			for i := 0; b.Loop(); i++ {
				prompt := prompts[i/2%len(prompts)]
				e, err := f.gateway.BeginPick(context.Background(), http.MethodPost, chatPath, headersOf(benchHead(prompt).GetRequestHeaders().GetHeaders()), shown(fullDuplex))
				if err != nil {
					b.Fatal(err)
				}
				for piece := range slices.Chunk(prompt, 16<<10) {
					err = errors.Join(err, e.AddBody(piece))
				}
				if err != nil {
					b.Fatal(err)
				}
				whole, before := time.Now(), threadTime(b)
				if _, err := e.Pick(nil); err != nil {
					b.Fatal(err)
				}
				used, took = append(used, threadTime(b)-before), append(took, time.Since(whole))
				e.End()
				time.Sleep(took[len(took)-1])
			}
			for name, all := range map[string][]time.Duration{"pick": took, "cpu": used} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, name+"-us-p50")
				b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, name+"-us-p99")
			}
		})
	}
}

// collectRarely lets the heap grow as tandem does (cmd/internal/memory), to some 64 MB before it is collected.
func collectRarely(b *testing.B) {
	percent := debug.SetGCPercent(800)
	b.Cleanup(func() { debug.SetGCPercent(percent) })
}

// measurePicks has b.N picks made by a proxy.
func measurePicks(b *testing.B, address string, encrypted bool, way string) {
	proxy := startBenchProxy(b, address, encrypted, way)
	collectRarely(b)
	proxy.picks(b, 20)
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	half, most := proxy.picks(b, b.N)
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	b.ReportMetric(half, "pick-us-p50")
	b.ReportMetric(most, "pick-us-p99")
}

// echo is a picker that chooses nothing, and gives bodies back as they came: what gRPC costs. Of requests it
// keeps the bytes, as a picker must, in memory that is used again.
type echo struct {
	extproc.UnimplementedExternalProcessorServer
	bodies sync.Pool // *[]byte
}

func (e *echo) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	body, _ := e.bodies.Get().(*[]byte) // of the request
	if body == nil {
		body = new([]byte)
	}
	*body = (*body)[:0]
	defer e.bodies.Put(body) // the proxy ends the stream when it has it back
	keeps := false
	m, piece := &shownMessage{}, &newPiece{}
	for {
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		var err error
		switch {
		case m.other.GetProtocolConfig().GetRequestBodyMode() == buffered:
			keeps, err = true, stream.SendMsg(showBody)
		case m.head && m.ofAnswer:
			err = stream.SendMsg(answerHead)
		case m.ofAnswer:
			*piece = newPiece{field: newAnswerBody, parts: m.parts, end: m.end}
			err = stream.SendMsg(piece)
		case m.piece && keeps:
			err = stream.SendMsg(headOfEcho.encode(newRequestBody, nil))
		case m.piece:
			for _, part := range m.parts {
				*body = append(*body, part...)
			}
			if m.end {
				err = giveBack(stream, *body)
			}
		}
		m.release()
		if err != nil {
			return err
		}
	}
}

var headOfEcho = newHead{addresses: []string{"10.0.0.1:8000"}, remove: steering}

// giveBack sends a request to a server as it came.
func giveBack(stream extproc.ExternalProcessor_ProcessServer, body []byte) error {
	err := stream.SendMsg(headOfEcho.encode(newRequestHead, nil))
	for piece := range requestPieces(heldBody{}, slices.Values([][]byte{body}), true) {
		if err == nil {
			err = stream.SendMsg(piece)
		}
	}
	return err
}

// startEcho returns the address of an echo.
func startEcho(b *testing.B, encrypted bool) string {
	f := &pickerFixture{t: b, encrypted: encrypted}
	server := grpc.NewServer(serverOptions(1<<20, f.certificate())...)
	extproc.RegisterExternalProcessorServer(server, &echo{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(ln) }()
	b.Cleanup(server.Stop)
	return ln.Addr().String()
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

// threadTime is what this thread has used of processors.
func threadTime(b *testing.B) time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// Streamed answers of piecesShown pieces, in plain text: cpu-us/piece is the picker's processor time for
// each, the proxy being another process, and floor that of a server that gives them back as they come. The budget
// is 5 us beyond the floor; BenchmarkAnswerPiece is the part that is ours. One answer passes at a time, or many.
func BenchmarkAnswerPieces(b *testing.B) {
	measure := func(b *testing.B, address, way string) {
		proxy := startBenchProxy(b, address, false, way)
		collectRarely(b)
		proxy.picks(b, 2)
		b.ResetTimer()
		before := processorTime(b)
		half, _ := proxy.picks(b, b.N)
		b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1e3/float64(b.N*piecesShown), "cpu-us/piece")
		b.ReportMetric(half, "us/piece-p50")
	}
	for _, c := range []struct{ name, way string }{
		{"", streamsWords}, {",many", streamsWords + manyAtOnce}, {",shown,many", streamsWords + showsAlone + manyAtOnce},
	} {
		b.Run("picker"+c.name, func(b *testing.B) {
			f := newPicker(b, setup{specs: []pools.Spec{{URL: upServer(b), Role: pools.Both, Connector: "aggregated"}}})
			f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
			measure(b, f.conn.Target(), c.way)
		})
		if !strings.Contains(c.way, showsAlone) {
			b.Run("floor"+c.name, func(b *testing.B) { measure(b, startEcho(b, false), c.way) })
		}
	}
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
