package pools

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"

	"github.com/tandem-gateway/tandem/pools/load"
)

func reading(v float64) load.Gauge { return load.Gauge{Value: v, Known: true} }

func TestServer_AnAnswersReportIsItsLoadAtOnce(t *testing.T) {
	fleet := NewFleet(Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	if err := fleet.Apply([]Spec{{URL: "http://127.0.0.1:1", Role: Both, Connector: "nixl"}}); err != nil {
		t.Fatal(err)
	}
	s, now := fleet.Servers()[0], time.Now()
	s.scraped.Store(&load.Load{Running: reading(2), Waiting: reading(0), At: now.Add(-time.Second)})
	s.RecordORCA(http.Header{load.ORCAHeader: {"TEXT num_requests_waiting=7"}}, now)
	s.RecordORCA(http.Header{load.ORCAHeader: {"TEXT nonsense"}}, now)
	if l := s.FreshLoad(now); l.Waiting != reading(7) || l.Running != reading(2) || l.External != reading(7*1024) {
		t.Errorf("the load is %+v", l)
	}
	if read, bad := s.reports.read.Load(), s.reports.unreadable.Load(); read != 1 || bad != 1 {
		t.Errorf("%d reports read and %d not, want 1 and 1", read, bad)
	}
	if l := s.FreshLoad(now.Add(time.Minute)); l.Known() {
		t.Errorf("a minute later the load is %+v", l)
	}
}

// vLLM reports all ranks, or the last one, whichever of them answers: what a rank says is not its
// load, and it is not asked.
func TestServer_NoRankIsAskedForItsReport(t *testing.T) {
	for format, asks := range map[string]bool{"TEXT": true, "JSON": true, "": false} {
		cfg := Default()
		cfg.ORCA = format
		fleet := NewFleet(cfg, slog.New(slog.DiscardHandler))
		t.Cleanup(fleet.Close)
		specs := []Spec{spec("http://10.0.0.1:1", Both)}
		for rank := range 3 {
			ranked := spec("http://10.0.0.2:1", Both)
			ranked.Rank = &rank
			specs = append(specs, ranked)
		}
		if err := fleet.Apply(specs); err != nil {
			t.Fatal(err)
		}
		for i, s := range fleet.Servers() {
			want := ""
			if asks && i == 0 { // the one without ranks
				want = format
			}
			if got := s.AsksORCA(); got != want {
				t.Errorf("%s is asked for %q, want %q", s.ID(), got, want)
			}
		}
	}
}

// reportServer streams one report to each client that asks.
type reportServer struct {
	service.UnimplementedOpenRcaServiceServer
	report *orca.OrcaLoadReport
}

func (s reportServer) StreamCoreMetrics(_ *service.OrcaLoadReportRequest, stream service.OpenRcaService_StreamCoreMetricsServer) error {
	if err := stream.Send(s.report); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func TestServer_ReportsComeAsAStream(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	service.RegisterOpenRcaServiceServer(server, reportServer{report: &orca.OrcaLoadReport{NamedMetrics: map[string]float64{"num_tokens_waiting": 900}}})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	fleet := NewFleet(Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(fleet.Close)
	spec := Spec{URL: "http://127.0.0.1:1", Role: Both, Connector: "nixl", ORCA: listener.Addr().String()}
	if err := fleet.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the report is the load", func() bool { return fleet.Servers()[0].Load().WaitingTokens == reading(900) })
}
