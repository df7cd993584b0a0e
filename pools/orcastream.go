package pools

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	orcaInterval = 100 * time.Millisecond // between two reports; a server may take longer
	orcaPause    = time.Second            // before a stream that broke is opened again
	orcaSilence  = time.Minute            // a stream without a report for this long is opened anew
)

// orcaStream follows the load reports of a server that has an OpenRcaService, which
// come without a request and without a scrape.
type orcaStream struct {
	address string // host:port
	server  *Server
	log     *slog.Logger
}

// run follows until ctx ends.
func (s *orcaStream) run(ctx context.Context) {
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.log.Error("cannot follow load reports", "orca", s.address, "error", err.Error())
		return
	}
	defer func() { _ = conn.Close() }()
	lost := false
	for {
		heard, err := s.follow(ctx, service.NewOpenRcaServiceClient(conn))
		if ctx.Err() != nil {
			return
		}
		if heard || !lost {
			s.log.Warn("no load reports", "orca", s.address, "error", err.Error())
		}
		lost = true
		if !Pause(ctx, time.Duration(float64(orcaPause)*(0.8+0.4*rand.Float64()))) {
			return
		}
	}
}

// follow reads reports until the stream breaks, and tells whether any came.
func (s *orcaStream) follow(ctx context.Context, client service.OpenRcaServiceClient) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(orcaSilence, cancel)
	defer silence.Stop()
	stream, err := client.StreamCoreMetrics(ctx, &service.OrcaLoadReportRequest{ReportInterval: durationpb.New(orcaInterval)})
	if err != nil {
		return false, err
	}
	for {
		report, err := stream.Recv()
		if err != nil {
			return heard, err
		}
		silence.Reset(orcaSilence)
		if !heard {
			s.log.Info("following load reports", "orca", s.address)
		}
		heard = true
		s.server.noteReport(report, time.Now())
	}
}
