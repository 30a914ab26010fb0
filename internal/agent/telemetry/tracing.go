package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelresource "go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// tracesLeave bounds how long the last spans may take to reach the collector.
const tracesLeave = 2 * time.Second

// Trace sends spans where the configuration's tracing says, as many of
// a million as it says; spans that continue a sampled one of the caller are
// always sent. A collector that is away costs nothing but its spans. Without a
// configuration the tracer is nil; stop sends what is left.
func Trace(ctx context.Context, cfg *tracingapi.TracingConfiguration, nodeName string, log *slog.Logger) (tracer trace.TracerProvider,
	stop func(), err error) {
	if cfg == nil {
		return nil, func() {}, nil
	}
	provider, err := tracing.NewProvider(ctx, cfg, nil, []otelresource.Option{otelresource.WithAttributes(
		attribute.String("service.name", "kubelet"), attribute.String("host.name", nodeName))})
	if err != nil {
		return nil, nil, fmt.Errorf("tracing (field tracing): %w", err)
	}
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesLeave)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last spans did not reach the collector", "err", err)
		}
	}, nil
}
