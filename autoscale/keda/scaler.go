package keda

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/autoscale/keda/externalscaler"
)

// metricName is what the trigger's metric is called; KEDA puts its index before it.
// The target is one: the metric is the number of replicas itself.
const metricName = "tandem-desired-replicas"

// scaler is KEDA's external scaler over published targets. The trigger's metadata name the
// pool: model and role, and variant for one kind of hardware.
type scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	targets *PublishedTargets
	ended   chan struct{} // closed when streams should end
}

// poolOf reads the metadata of a trigger.
func poolOf(ref *externalscaler.ScaledObjectRef) (Pool, error) {
	metadata := ref.GetScalerMetadata()
	p := Pool{metadata["model"], metadata["role"], metadata["variant"]}
	if err := p.Validate(); err != nil {
		return Pool{}, status.Errorf(codes.InvalidArgument, "the trigger's metadata must name model and role: %v", err)
	}
	return p, nil
}

func (s *scaler) read(ref *externalscaler.ScaledObjectRef) (Target, error) {
	p, err := poolOf(ref)
	if err != nil {
		return Target{}, err
	}
	r, err := s.targets.Read(p, time.Now())
	if err != nil {
		return Target{}, status.Error(codes.Unavailable, err.Error())
	}
	return r, nil
}

// IsActive says whether the pool must have a server.
func (s *scaler) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	r, err := s.read(ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: r.Active()}, nil
}

// While requests are held for a pool KEDA is pushed again, after firstRepeat and then ever
// more rarely: it forgets a push that it could not act on. It looks into its own cache
// whether the target is at zero, and what just went there is not in it yet
// (kedacore/keda: pkg/scaling/executor/scale_scaledobjects.go).
const (
	firstRepeat = 250 * time.Millisecond
	lastRepeat  = 8 * time.Second
)

// StreamIsActive says so now and at each change, until the client leaves or the server
// stops: a request that is held for want of a server is known at once, and again while it
// is. While nothing is known it says nothing.
func (s *scaler) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamIsActiveServer) error {
	p, err := poolOf(ref)
	if err != nil {
		return err
	}
	sentAt, active := time.Time{}, false
	pause := firstRepeat
	for {
		r, changed, err := s.targets.watch(p, time.Now())
		differs := err == nil && (sentAt.IsZero() || r.Active() != active)
		if differs || r.WaitingForCapacity > 0 && time.Since(sentAt) >= pause {
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: r.Active()}); err != nil {
				return err
			}
			sentAt, active = time.Now(), r.Active()
			pause = min(2*pause, lastRepeat)
		}
		if differs || r.WaitingForCapacity == 0 {
			pause = firstRepeat
		}
		var repeat <-chan time.Time
		if r.WaitingForCapacity > 0 {
			repeat = time.After(time.Until(sentAt.Add(pause)))
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.ended:
			return nil
		case <-changed:
		case <-repeat:
		}
	}
}

// spec never changes.
func spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{MetricName: metricName, TargetSizeFloat: 1}}}
}

// GetMetricSpec names the metric and its target.
func (s *scaler) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	if _, err := poolOf(ref); err != nil {
		return nil, err
	}
	return spec(), nil
}

// StreamMetricSpec says the same and then waits for the client to leave, or the server to
// stop.
func (s *scaler) StreamMetricSpec(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamMetricSpecServer) error {
	if _, err := poolOf(ref); err != nil {
		return err
	}
	if err := stream.Send(spec()); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return stream.Context().Err()
	case <-s.ended:
		return nil
	}
}

// GetMetrics says how many replicas are wanted.
func (s *scaler) GetMetrics(_ context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
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
