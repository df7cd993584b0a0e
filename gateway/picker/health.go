package picker

import (
	"context"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthChecks answers gRPC health checks: for the process that lives, and for the picker where requests
// are of use to it (the protocol's "Health Checking").
type healthChecks struct {
	healthpb.UnimplementedHealthServer
	ready func() bool
}

// Check says how one of the protocol's services does.
func (h *healthChecks) Check(_ context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	switch request.GetService() {
	case "liveness":
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
	case "", "readiness", extproc.ExternalProcessor_ServiceDesc.ServiceName:
		if h.ready() {
			return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
		}
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return nil, status.Error(codes.NotFound, "unknown service")
}

// watchInterval is how often the state that a client watches is looked at.
const watchInterval = time.Second

// Watch says it now and whenever it changes.
func (h *healthChecks) Watch(request *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		now, err := h.Check(stream.Context(), request)
		if err != nil { // as the protocol of health checks wants it
			now = &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVICE_UNKNOWN}
		}
		if now.GetStatus() != last {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now.GetStatus()
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}
