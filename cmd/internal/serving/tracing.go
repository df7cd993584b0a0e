package serving

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/pd"
)

// newTracing returns a provider that batches spans to the OTLP endpoint, drops
// them when it is slow or away, and never blocks a request. Without an endpoint
// nothing is recorded, but requests still get the ids that both legs carry. The
// client's sampling flag is not obeyed: it could fill the collector.
func newTracing(ctx context.Context, endpoint string, share float64, instance string) (*sdktrace.TracerProvider, error) {
	service := describeService(ctx, instance)
	if endpoint == "" {
		return sdktrace.NewTracerProvider(sdktrace.WithResource(service), sdktrace.WithSampler(sdktrace.NeverSample())), nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimRight(endpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("otlp-endpoint: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithResource(service),
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(share)),
		sdktrace.WithBatcher(exporter),
	), nil
}

// tracingFaults logs what fails in tracing, a line a minute: while a collector is away each batch of spans fails.
func tracingFaults(log *slog.Logger) otel.ErrorHandler {
	var lines pd.LogLimiter
	return otel.ErrorHandlerFunc(func(err error) {
		if failures := lines.Add("", time.Now()); failures > 0 {
			log.Warn("tracing failed in part", "error", err.Error(), "failures", failures)
		}
	})
}

// describeService is what traces say of this process: its names and version, and over them
// what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say. What cannot be read of these is
// reported and left out.
func describeService(ctx context.Context, instance string) *resource.Resource {
	service, err := resource.New(ctx,
		resource.WithAttributes(
			semconv.ServiceName("tandem"), semconv.ServiceVersion(version.String()), semconv.ServiceInstanceID(instance)),
		resource.WithFromEnv())
	if err != nil {
		otel.Handle(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err))
	}
	return service
}
