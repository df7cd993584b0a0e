package load

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	service "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
)

// reports is a stream of reports at times, and silent after them.
type reports struct {
	service.OpenRcaServiceClient
	grpc.ClientStream
	ctx   context.Context
	fails error
	at    []time.Duration // each after the one before
}

func (r *reports) StreamCoreMetrics(ctx context.Context, _ *service.OrcaLoadReportRequest, _ ...grpc.CallOption) (service.OpenRcaService_StreamCoreMetricsClient, error) {
	r.ctx = ctx
	return r, r.fails
}

func (r *reports) Recv() (*orca.OrcaLoadReport, error) {
	next := 24 * time.Hour
	if len(r.at) > 0 {
		next, r.at = r.at[0], r.at[1:]
	}
	select {
	case <-time.After(next):
		return new(orca.OrcaLoadReport), nil
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	}
}

// A stream is given up after a minute without a report, and not as long as they come.
func TestORCAStream_IsGivenUpInSilence(t *testing.T) {
	lost := errors.New("no such service")
	for name, c := range map[string]struct {
		stream reports
		taken  int
		lasts  time.Duration
	}{
		"no report":           {reports{}, 0, time.Minute},
		"reports":             {reports{at: []time.Duration{50 * time.Second, 50 * time.Second, 59 * time.Second}}, 3, 219 * time.Second},
		"one too late":        {reports{at: []time.Duration{time.Second, 61 * time.Second}}, 1, 61 * time.Second},
		"it is not to be had": {reports{fails: lost}, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			taken, start := 0, time.Now()
			s := orcaStream{take: func(*orca.OrcaLoadReport) { taken++ }, log: slog.New(slog.DiscardHandler)}
			received, err := s.follow(t.Context(), &c.stream)
			if err == nil || c.stream.fails != nil && !errors.Is(err, lost) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(start); taken != c.taken || received != (c.taken > 0) || took != c.lasts {
				t.Errorf("%s: %d taken, received %v, in %v", name, taken, received, took)
			}
			if c.stream.ctx.Err() == nil {
				t.Errorf("%s: its stream goes on", name)
			}
		})
	}
}

// once streams one report to the first caller, and none to others.
type once struct {
	service.UnimplementedOpenRcaServiceServer
	asked atomic.Int64
}

func (o *once) StreamCoreMetrics(_ *service.OrcaLoadReportRequest, stream service.OpenRcaService_StreamCoreMetricsServer) error {
	if o.asked.Add(1) > 1 {
		return errors.New("no more")
	}
	return stream.Send(&orca.OrcaLoadReport{CpuUtilization: 1})
}

type text struct {
	mu  sync.Mutex // guards all
	all strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// A stream that broke is opened again, time after time; that there are no reports any more is
// said once.
func TestFollowORCA_AStreamThatBrokeIsOpenedAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, reporter := grpc.NewServer(), new(once)
	service.RegisterOpenRcaServiceServer(server, reporter)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var log text
	var taken atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		FollowORCA(ctx, listener.Addr().String(), func(*orca.OrcaLoadReport) { taken.Add(1) }, slog.New(slog.NewTextHandler(&log, nil)))
	}()
	for deadline := time.Now().Add(30 * time.Second); reporter.asked.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not asked again")
		}
	}
	cancel()
	<-done
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	said := log.all.String()
	if taken.Load() != 1 || strings.Count(said, "following load reports") != 1 || strings.Count(said, "no load reports") != 1 {
		t.Errorf("%d taken, said\n%s", taken.Load(), said)
	}
}
