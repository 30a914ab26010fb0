package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-client/pkg"

	"github.com/berth-dev/berth/internal/controller"
)

// Service is the runtime half of CRI as the agent calls it.
type Service = internalapi.RuntimeService

// ImageService is the image half of CRI.
type ImageService = internalapi.ImageManagerService

// ConnectConfig says where the runtime is.
type ConnectConfig struct {
	// Endpoint is a CRI endpoint such as unix:///run/containerd/containerd.sock.
	Endpoint string
	// ImageEndpoint is where images are served; empty means Endpoint.
	ImageEndpoint string
	// RequestTimeout bounds one ordinary call (two minutes when zero). Starting
	// a sandbox gets twice as long, stopping a container its grace on top,
	// pulling an image has no bound.
	RequestTimeout time.Duration
	Log            *slog.Logger
	// Tracer takes a span of each call; nil takes none.
	Tracer trace.TracerProvider
}

// connectRetry are the pauses before the runtime is dialed again.
var connectRetry = controller.Backoff{First: 10 * time.Millisecond, Most: time.Second}

// Connect dials the runtime and waits until it answers, retrying with growing
// pauses until ctx ends. The caller closes both.
func Connect(ctx context.Context, cfg ConnectConfig) (Service, ImageService, error) {
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = 2 * time.Minute
	}
	if cfg.ImageEndpoint == "" {
		cfg.ImageEndpoint = cfg.Endpoint
	}
	retry := controller.Retry{Backoff: connectRetry}
	for warned := false; ; {
		svc, images, err := dial(ctx, cfg)
		if err == nil {
			return svc, images, nil
		}
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("connecting to the container runtime at %s: %w", cfg.Endpoint, errors.Join(ctx.Err(), err))
		}
		pause := retry.Failed()
		if !warned && pause > 200*time.Millisecond {
			warned = true
			cfg.Log.Warn("the container runtime does not answer yet", "endpoint", cfg.Endpoint, "err", err)
		}
		controller.Sleep(ctx, pause)
	}
}

func dial(ctx context.Context, cfg ConnectConfig) (Service, ImageService, error) {
	svc, err := cri.NewRemoteRuntimeService(ctx, cfg.Endpoint, cfg.RequestTimeout, cfg.Tracer, false)
	if err != nil {
		return nil, nil, err
	}
	images, err := cri.NewRemoteImageService(ctx, cfg.ImageEndpoint, cfg.RequestTimeout, cfg.Tracer, false)
	if err != nil {
		_ = svc.Close(ctx)
		return nil, nil, err
	}
	return svc, images, nil
}

// IsNotFound tells whether the runtime says that the object does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsUnimplemented tells whether the runtime does not know the call at all.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
