package keda

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tandem-gateway/tandem/autoscale/keda/externalscaler"
)

// newClient serves targets over a real connection.
func newClient(t *testing.T, targets *PublishedTargets) (client externalscaler.ExternalScalerClient, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(targets)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return externalscaler.NewExternalScalerClient(conn), server.Stop
}

// activity streams whether the decode pool is active, for a minute at most.
func activity(t *testing.T, client externalscaler.ExternalScalerClient) externalscaler.ExternalScaler_StreamIsActiveClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := client.StreamIsActive(ctx, decodeRef)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

var decodeRef = &externalscaler.ScaledObjectRef{Name: "so", Namespace: "ns", ScalerMetadata: map[string]string{"model": "m", "role": "decode"}}

func TestScaler_SaysWhatTheBoardSays(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	client, _ := newClient(t, targets)
	ctx := t.Context()
	request := &externalscaler.GetMetricsRequest{ScaledObjectRef: decodeRef, MetricName: metricName}

	if _, err := client.GetMetrics(ctx, request); status.Code(err) != codes.Unavailable {
		t.Errorf("value of an unknown pool: %v", err)
	}
	if _, err := client.IsActive(ctx, decodeRef); status.Code(err) != codes.Unavailable {
		t.Errorf("activity of an unknown pool: %v", err)
	}
	targets.Publish(map[Pool]Target{decode: {Replicas: 11, At: time.Now()}})
	got, err := client.GetMetrics(ctx, request)
	if err != nil || len(got.MetricValues) != 1 || got.MetricValues[0].MetricValueFloat != 11 {
		t.Errorf("%v, %v", got, err)
	}
	spec, err := client.GetMetricSpec(ctx, decodeRef)
	if err != nil || len(spec.MetricSpecs) != 1 || spec.MetricSpecs[0].MetricName != metricName || spec.MetricSpecs[0].TargetSizeFloat != 1 {
		t.Errorf("%v, %v", spec, err)
	}
	if _, err := client.GetMetricSpec(ctx, &externalscaler.ScaledObjectRef{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no pool is named: %v", err)
	}
	chef := &externalscaler.ScaledObjectRef{ScalerMetadata: map[string]string{"model": "m", "role": "chef"}}
	if _, err := client.IsActive(ctx, chef); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "neither prefill nor decode") {
		t.Errorf("a role that does not exist: %v", err)
	}
	request.MetricName = "other"
	if _, err := client.GetMetrics(ctx, request); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another metric: %v", err)
	}
}

func TestStreamIsActive_PushesTheFirstHeldRequest(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	client, _ := newClient(t, targets)
	stream := activity(t, client)
	var last Target
	for _, step := range []struct {
		reading Target
		want    bool
	}{
		{Target{Replicas: 0}, false}, // the first reading is said, whatever it is
		{Target{WaitingForCapacity: 1}, true},
		{Target{}, false},
		{Target{Replicas: 2}, true},
	} {
		step.reading.At = time.Now()
		targets.Publish(map[Pool]Target{decode: step.reading})
		got, err := stream.Recv()
		for err == nil && last.WaitingForCapacity > 0 && got.Result { // what was held may have been said again before
			got, err = stream.Recv()
		}
		if err != nil || got.Result != step.want {
			t.Fatalf("after %+v: %v, %v", step.reading, got, err)
		}
		last = step.reading
	}
	again := activity(t, client)
	if got, err := again.Recv(); err != nil || !got.Result {
		t.Errorf("a stream that is opened anew begins with %v, %v", got, err)
	}
}

// KEDA's cache does not know yet that the target is at zero: the first push does nothing.
func TestStreamIsActive_PushesAgainWhileRequestsAreHeld(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	client, _ := newClient(t, targets)
	stream := activity(t, client)
	targets.Publish(map[Pool]Target{decode: {Replicas: 1, WaitingForCapacity: 1, At: time.Now()}})
	for range 3 {
		if got, err := stream.Recv(); err != nil || !got.Result {
			t.Fatalf("while a request is held: %v, %v", got, err)
		}
	}
	targets.Publish(map[Pool]Target{decode: {At: time.Now()}}) // the next is of this, if the last was not said again just now
	for {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !got.Result {
			break
		}
	}
}

// KEDA opens a stream that ended after two seconds, and one that failed after up to a
// minute.
func TestServer_EndsStreamsWithoutAnError(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	client, stop := newClient(t, targets)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	targets.Publish(map[Pool]Target{decode: {At: time.Now()}})
	activity, err := client.StreamIsActive(ctx, decodeRef)
	if err != nil {
		t.Fatal(err)
	}
	specs, err := client.StreamMetricSpec(ctx, decodeRef)
	if err != nil {
		t.Fatal(err)
	}
	_, first := activity.Recv()
	_, second := specs.Recv()
	if err := errors.Join(first, second); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := activity.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream of activity ends with %v", err)
	}
	if _, err := specs.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream of specs ends with %v", err)
	}
}

func TestStreamMetricSpec_BeginsWithTheSpec(t *testing.T) {
	client, _ := newClient(t, NewPublishedTargets(time.Minute))
	stream, err := client.StreamMetricSpec(t.Context(), decodeRef)
	if err != nil {
		t.Fatal(err)
	}
	streamed, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	asked, err := client.GetMetricSpec(t.Context(), decodeRef)
	if err != nil || streamed.String() != asked.String() {
		t.Errorf("streamed %v, asked %v, %v", streamed, asked, err)
	}
}
