package agent

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelresource "go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/component-base/tracing"
)

// tracesLeave bounds how long the last spans may take to reach the collector.
const tracesLeave = 2 * time.Second

// startTracing sends spans where the configuration's tracing says, as many of
// a million as it says; spans that continue a sampled one of the caller are
// always sent. A collector that is away costs nothing but its spans. The
// returned function sends what is left.
func (a *Agent) startTracing(ctx context.Context) (stop func(), err error) {
	cfg := a.Config.Kubelet.Tracing
	if cfg == nil {
		return func() {}, nil
	}
	provider, err := tracing.NewProvider(ctx, cfg, nil, []otelresource.Option{otelresource.WithAttributes(
		attribute.String("service.name", "kubelet"), attribute.String("host.name", a.Config.NodeName))})
	if err != nil {
		return nil, fmt.Errorf("tracing (field tracing): %w", err)
	}
	a.tracer = provider
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesLeave)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			a.Config.Log.Warn("the last spans did not reach the collector", "err", err)
		}
	}, nil
}
