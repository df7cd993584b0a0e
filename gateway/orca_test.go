package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// measured is the address of a server that answers probes and tells its load.
func measured(t *testing.T, metrics string) string {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = w.Write([]byte(`{"data":[{"id":"m","owned_by":"vllm"}]}`))
		case "/metrics":
			_, _ = w.Write([]byte(metrics))
		}
	}))
	t.Cleanup(engine.Close)
	return engine.URL
}

// The gateway tells its load as its servers do: the KV of those that tell theirs on the mean,
// and what is in flight of what may be.
func TestLoadReport(t *testing.T) {
	of := usual(t)
	of.pools = pools.Default()
	of.pools.ProbeInterval = 20 * time.Millisecond
	g := run(t, of, endless,
		pools.Spec{URL: measured(t, "vllm:kv_cache_usage_perc 0.25\n"), Role: pools.Both, Connector: "nixl"},
		pools.Spec{URL: measured(t, "vllm:kv_cache_usage_perc 0.75\n"), Role: pools.Both, Connector: "nixl"}, alone(t))
	eventually(t, "both tell their KV", func() bool {
		return g.server.LoadReport(time.Now()).GetNamedMetrics()["kv_cache_usage_perc"] == 0.5
	})
	idle := g.server.LoadReport(time.Now())
	if m := idle.GetNamedMetrics(); idle.GetApplicationUtilization() != 0 || m["num_requests_running"] != 0 || m["num_requests_waiting"] != 0 || m["num_tokens_waiting"] != 0 || len(m) != 4 {
		t.Errorf("%v", idle)
	}
	g.openStream()
	g.openStream()
	busy := g.server.LoadReport(time.Now())
	if want := 2 / float64(g.queue.MaxInFlight()); busy.GetApplicationUtilization() != want || busy.GetNamedMetrics()["num_requests_running"] != 2 {
		t.Errorf("two streams run: %v", busy)
	}
	silent := run(t, usual(t), endless, alone(t))
	if m := silent.server.LoadReport(time.Now()).GetNamedMetrics(); len(m) != 3 {
		t.Errorf("no server reports its KV: %v", m)
	}
}

// A client that asks for the load with a request gets it in the format that it asks for.
func TestORCAHeader(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for _, format := range []string{"TEXT", "text", "JSON", "BIN"} {
		got := g.post(`{"model":"m","prompt":"hi"}`, load.ORCAFormatHeader, format)
		report, err := load.ParseORCA(got.header.Get(load.ORCAHeader))
		if err != nil || len(report.GetNamedMetrics()) != 3 {
			t.Errorf("%s: %q: %v", format, got.header.Get(load.ORCAHeader), err)
		}
	}
	for _, format := range []string{"", "XML"} {
		if got := g.post(`{"model":"m","prompt":"hi"}`, load.ORCAFormatHeader, format); got.header[load.ORCAHeader] != nil {
			t.Errorf("%q: %q", format, got.header.Get(load.ORCAHeader))
		}
	}
	report := g.server.LoadReport(time.Now().Add(time.Second))
	report.ApplicationUtilization = 0.5
	want := "TEXT application_utilization=0.5, rps_fractional=0.6, eps=0, named_metrics.num_requests_running=0, named_metrics.num_requests_waiting=0, named_metrics.num_tokens_waiting=0"
	if got := orcaHeader(report, "TEXT"); got != want {
		t.Errorf("%s", got)
	}
}

// The stream of reports begins with one at once; no client gets them faster than ten a second,
// and it ends with the client.
func TestLoadReports_Stream(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	server := grpc.NewServer()
	g.server.RegisterLoadReports(server)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	// times are those of reports, so many or as many as come within the limit.
	times := func(interval *durationpb.Duration, n int, limit time.Duration) (at []time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began := time.Now()
		stream, err := service.NewOpenRcaServiceClient(conn).StreamCoreMetrics(ctx, &service.OrcaLoadReportRequest{ReportInterval: interval})
		if err != nil {
			t.Fatal(err)
		}
		for len(at) < n {
			if _, err := stream.Recv(); err != nil {
				return at
			}
			at = append(at, time.Since(began))
		}
		return at
	}
	if at := times(durationpb.New(time.Nanosecond), 3, 30*time.Second); len(at) != 3 || at[2] < 2*minReportInterval {
		t.Errorf("wanted each nanosecond: %v", at)
	}
	if at := times(durationpb.New(time.Hour), 2, 200*time.Millisecond); len(at) != 1 {
		t.Errorf("wanted each hour: %v", at)
	}
	if at := times(nil, 2, 200*time.Millisecond); len(at) != 1 {
		t.Errorf("of its own: %v", at)
	}
}

// reportStream is a client of load reports whose connection a test invents.
type reportStream struct {
	grpc.ServerStream
	ctx context.Context
	err error // of sending
}

func (s reportStream) Send(*orca.OrcaLoadReport) error { return s.err }
func (s reportStream) Context() context.Context        { return s.ctx }

// A stream of reports ends with why it ended: a connection that takes none, or a client that left.
func TestLoadReports_EndWithTheirError(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip)
	reports, broken := loadReports{server: g.server}, errors.New("broken")
	if err := reports.StreamCoreMetrics(nil, reportStream{ctx: t.Context(), err: broken}); !errors.Is(err, broken) {
		t.Errorf("a connection that takes none: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := reports.StreamCoreMetrics(nil, reportStream{ctx: ctx}); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left: %v", err)
	}
}
