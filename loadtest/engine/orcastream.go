package engine

import (
	"fmt"
	"net"
	"time"

	data "github.com/cncf/xds/go/xds/data/orca/v3"
	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
)

// reports streams the engine's load (OpenRcaService), in tokens too, which no header
// of vLLM's tells.
type reports struct {
	service.UnimplementedOpenRcaServiceServer
	engine   *Engine
	listener net.Listener
	server   *grpc.Server
}

// openReports listens; without an address nothing is streamed.
func (e *Engine) openReports() error {
	if e.cfg.ORCA == "" {
		return nil
	}
	listener, err := net.Listen("tcp", e.cfg.ORCA)
	if err != nil {
		return fmt.Errorf("load reports: %w", err)
	}
	e.reports = &reports{engine: e, listener: listener, server: grpc.NewServer()}
	service.RegisterOpenRcaServiceServer(e.reports.server, e.reports)
	e.loops.Go(func() { _ = e.reports.server.Serve(listener) }) // it ends when it is stopped
	return nil
}

// address is where reports are streamed, empty if nowhere.
func (s *reports) address() string {
	if s == nil {
		return ""
	}
	return s.listener.Addr().String()
}

func (s *reports) close() {
	if s != nil {
		s.server.Stop()
	}
}

// StreamCoreMetrics sends a report at once and then every interval, until the client
// leaves or the engine stops.
func (s *reports) StreamCoreMetrics(request *service.OrcaLoadReportRequest, stream service.OpenRcaService_StreamCoreMetricsServer) error {
	tick := time.NewTicker(max(request.GetReportInterval().AsDuration(), 10*time.Millisecond))
	defer tick.Stop()
	for {
		if err := stream.Send(s.engine.loadReport()); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}

// loadReport sums the ranks; of the KV the fullest counts.
func (e *Engine) loadReport() *data.OrcaLoadReport {
	named := map[string]float64{}
	for _, r := range e.ranks {
		l := r.load()
		named["num_requests_running"] += float64(l.running)
		named["num_requests_waiting"] += float64(l.waiting + l.loading)
		named["num_tokens_waiting"] += float64(l.waitingTokens)
		named["num_tokens_running"] += float64(l.usedBlocks * l.blockSize)
		named["kv_cache_usage_perc"] = max(named["kv_cache_usage_perc"], l.kvShare)
	}
	return &data.OrcaLoadReport{NamedMetrics: named}
}
