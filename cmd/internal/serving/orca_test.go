package serving

import (
	"context"
	"slices"
	"testing"
	"time"

	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools/load"
)

func TestORCA_PrefillLegsAskForLoad(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	got := c.post("/v1/completions", `{"model":"test-model","max_tokens":2,"prompt":"`+longPrompt+`"}`)
	if got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
		t.Fatalf("%d %s by %v", got.status, got.body, got.header)
	}
	if leaked := got.header.Get(load.ORCAHeader); leaked != "" {
		t.Errorf("the client got %q", leaked)
	}
	for _, r := range requests(c.prefill, "/v1/completions") {
		if !slices.Contains(r.HeaderNames, load.ORCAFormatHeader) {
			t.Error("a prefill leg did not ask")
		}
	}
	for _, r := range requests(c.decode, "/v1/completions") {
		if slices.Contains(r.HeaderNames, load.ORCAFormatHeader) {
			t.Error("a decode leg asked")
		}
	}
	if n := c.metric("tandem_orca_reports_total", `outcome="read"`); n != 1 {
		t.Errorf("%v reports were read, want 1", n)
	}
}

// vLLM's report of two ranks behind one address has each name twice, and says of none which rank it is.
func TestORCA_ReportsOfSeveralRanksAreReadAsOneServers(t *testing.T) {
	prefill := startTestEngine(t, engine.RolePrefill, func(cfg *engine.Config) { cfg.DataParallel = 2 })
	decode := startTestEngine(t, engine.RoleDecode, nil)
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: prefill.URL()})
		cfg.servers[1].add(serverEntry{URL: decode.URL()})
	}})
	eventually(t, "both are up", func() bool { return c.metric("tandem_server_up") == 2 })
	got := c.post("/v1/completions", `{"model":"test-model","max_tokens":2,"prompt":"`+longPrompt+`"}`)
	if got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
		t.Fatalf("%d %s by %v", got.status, got.body, got.header)
	}
	read, unreadable := c.metric("tandem_orca_reports_total", `outcome="read"`), c.metric("tandem_orca_reports_total", `outcome="unreadable"`)
	if read != 1 || unreadable != 0 {
		t.Errorf("%v reports were read and %v not, want 1 and 0", read, unreadable)
	}
}

func TestORCA_TheGatewayReportsItsOwnLoad(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.ports.orca = "127.0.0.1:0" }})
	const body = `{"model":"test-model","max_tokens":2,"prompt":"hi","stream":true}`
	for _, format := range []string{"TEXT", "JSON", "BIN"} {
		got := c.post("/v1/completions", body, load.ORCAFormatHeader, format)
		report, err := load.ParseORCA(got.header.Get(load.ORCAHeader))
		if err != nil || got.status != 200 {
			t.Errorf("%s: %d, %v", format, got.status, err)
			continue
		}
		// One of 4096: a stream is in flight when its headers are written.
		if u := report.GetApplicationUtilization(); u <= 0 || u > 0.01 || len(report.GetNamedMetrics()) < 3 {
			t.Errorf("%s: %v", format, report)
		}
	}
	for _, format := range []string{"", "XML"} {
		if got := c.post("/v1/completions", body, load.ORCAFormatHeader, format); got.header.Get(load.ORCAHeader) != "" {
			t.Errorf("asked for %q it got %q", format, got.header.Get(load.ORCAHeader))
		}
	}
	for _, r := range requests(c.decode, "/v1/completions") {
		if slices.Contains(r.HeaderNames, load.ORCAFormatHeader) {
			t.Error("the client's wish reached an engine")
		}
	}

	conn, err := grpc.NewClient(c.node.ports.orca.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := service.NewOpenRcaServiceClient(conn).StreamCoreMetrics(ctx, &service.OrcaLoadReportRequest{ReportInterval: durationpb.New(time.Nanosecond)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		report, err := stream.Recv()
		if err != nil {
			t.Fatalf("report %d: %v", i, err)
		}
		if _, ok := report.GetNamedMetrics()["num_requests_running"]; !ok {
			t.Errorf("report %d: %v", i, report)
		}
	}
}
