package gateway

import (
	"time"

	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
)

// How often reports may be wanted.
const (
	minReportInterval     = 100 * time.Millisecond
	maxReportInterval     = time.Minute
	defaultReportInterval = 10 * time.Second
)

// loadReports streams the gateway's load to clients that ask for it (OpenRcaService).
type loadReports struct {
	service.UnimplementedOpenRcaServiceServer
	server *Server
}

// RegisterLoadReports adds the stream of load reports to a gRPC server.
func (s *Server) RegisterLoadReports(to grpc.ServiceRegistrar) {
	service.RegisterOpenRcaServiceServer(to, loadReports{server: s})
}

// StreamCoreMetrics sends a report at once and then every interval, until the client
// leaves or the server stops.
func (l loadReports) StreamCoreMetrics(request *service.OrcaLoadReportRequest, stream service.OpenRcaService_StreamCoreMetricsServer) error {
	interval := defaultReportInterval
	if wanted := request.GetReportInterval(); wanted != nil {
		interval = min(max(wanted.AsDuration(), minReportInterval), maxReportInterval)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := stream.Send(l.server.LoadReport(time.Now())); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
