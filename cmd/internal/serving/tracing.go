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
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/cmd/internal/version"
	"github.com/tandem-gateway/tandem/pd"
)

// tracing is where spans go.
type tracing struct {
	tracer   trace.Tracer
	provider *sdktrace.TracerProvider // nil without a collector
}

// newTracing batches spans to the OTLP endpoint, drops them when it is slow or
// away, and never blocks a request. The client's sampling flag is not
// obeyed: it could fill the collector. Without an endpoint the gateway takes no part in a trace: engines
// get the client's as it came, flag and all. One of ours that nobody records would have those that trace
// record nothing, as what they sample follows their parent (OpenTelemetry's default, ParentBased).
func newTracing(ctx context.Context, endpoint string, share float64, instance string) (tracing, error) {
	if endpoint == "" {
		return tracing{tracer: noop.Tracer{}}, nil
	}
	service := describeService(ctx, instance)
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimRight(endpoint, "/")+"/v1/traces"))
	if err != nil {
		return tracing{}, fmt.Errorf("otlp-endpoint: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(service),
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(share)),
		sdktrace.WithBatcher(exporter),
	)
	return tracing{provider.Tracer("tandem"), provider}, nil
}

// end sends the last spans.
func (t tracing) end(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
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
