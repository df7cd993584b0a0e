package keda

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/autoscale/keda/externalscaler"
)

// metricName is what the trigger's metric is called; KEDA puts its index before it.
// The target is one: the metric is the number of replicas itself.
const metricName = "tandem-desired-replicas"

// Scaler is KEDA's external scaler over a board. The trigger's metadata name the
// pool: model and role, and variant for one kind of hardware.
type Scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	board *Board
}

// Register adds the scaler of a board to a gRPC server.
func Register(server *grpc.Server, b *Board) {
	externalscaler.RegisterExternalScalerServer(server, &Scaler{board: b})
}

// poolOf reads the metadata of a trigger.
func poolOf(ref *externalscaler.ScaledObjectRef) (Pool, error) {
	said := ref.GetScalerMetadata()
	p := Pool{said["model"], said["role"], said["variant"]}
	if p.Model == "" || p.Role == "" {
		return Pool{}, status.Error(codes.InvalidArgument, "the trigger's metadata must name model and role")
	}
	return p, nil
}

func (s *Scaler) read(ref *externalscaler.ScaledObjectRef) (Reading, error) {
	p, err := poolOf(ref)
	if err != nil {
		return Reading{}, err
	}
	r, err := s.board.Read(p, time.Now())
	if err != nil {
		return Reading{}, status.Error(codes.Unavailable, err.Error())
	}
	return r, nil
}

// IsActive says whether the pool must have a server.
func (s *Scaler) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	r, err := s.read(ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: r.Active()}, nil
}

// StreamIsActive says so now and at each change, until the client leaves: a request
// that is held for want of a server is known at once. While nothing is known it says
// nothing.
func (s *Scaler) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamIsActiveServer) error {
	p, err := poolOf(ref)
	if err != nil {
		return err
	}
	said, active := false, false
	for {
		r, changed, err := s.board.watch(p, time.Now())
		if err == nil && (!said || r.Active() != active) {
			said, active = true, r.Active()
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: active}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// spec never changes.
func spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{MetricName: metricName, TargetSizeFloat: 1}}}
}

// GetMetricSpec names the metric and its target.
func (s *Scaler) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	if _, err := poolOf(ref); err != nil {
		return nil, err
	}
	return spec(), nil
}

// StreamMetricSpec says the same and then waits for the client to leave.
func (s *Scaler) StreamMetricSpec(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamMetricSpecServer) error {
	if _, err := poolOf(ref); err != nil {
		return err
	}
	if err := stream.Send(spec()); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// GetMetrics says how many replicas are wanted.
func (s *Scaler) GetMetrics(_ context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	if req.GetMetricName() != metricName {
		return nil, status.Errorf(codes.InvalidArgument, "metric %q: want %s", req.GetMetricName(), metricName)
	}
	r, err := s.read(req.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	value := &externalscaler.MetricValue{MetricName: metricName, MetricValueFloat: float64(r.Replicas)}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{value}}, nil
}
