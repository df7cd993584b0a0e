package load

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
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

// FollowORCA hands over the load reports of an OpenRcaService at host:port, which come
// without a request and without a scrape, until ctx ends.
func FollowORCA(ctx context.Context, address string, take func(*orca.OrcaLoadReport), log *slog.Logger) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Error("cannot follow load reports", "orca", address, "error", err.Error())
		return
	}
	defer func() { _ = conn.Close() }()
	s := orcaStream{address: address, take: take, log: log}
	for lost := false; ; lost = true {
		received, err := s.follow(ctx, service.NewOpenRcaServiceClient(conn))
		if ctx.Err() != nil {
			return
		}
		if received || !lost {
			log.Warn("no load reports", "orca", address, "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(float64(orcaPause) * (0.8 + 0.4*rand.Float64()))):
		}
	}
}

// orcaStream is where one stream of reports after the other goes.
type orcaStream struct {
	address string // host:port
	take    func(*orca.OrcaLoadReport)
	log     *slog.Logger
}

// follow reads reports until the stream breaks, and returns whether any came.
func (s orcaStream) follow(ctx context.Context, client service.OpenRcaServiceClient) (received bool, err error) {
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
			return received, err
		}
		silence.Reset(orcaSilence)
		if !received {
			s.log.Info("following load reports", "orca", s.address)
		}
		received = true
		s.take(report)
	}
}

// TryORCA waits for one load report of an OpenRcaService at host:port.
func TryORCA(ctx context.Context, address string, limit time.Duration) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := orcaStream{address: address, take: func(*orca.OrcaLoadReport) { cancel() }, log: slog.New(slog.DiscardHandler)}
	if received, err := s.follow(ctx, service.NewOpenRcaServiceClient(conn)); !received {
		return err
	}
	return nil
}
