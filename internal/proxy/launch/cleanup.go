package launch

import (
	"context"
	"errors"
	"log/slog"

	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/config"
	"github.com/berth-dev/berth/internal/proxy/migrate"
)

// cleanup removes our tables, and what kube-proxy left if that is asked for.
func cleanup(ctx context.Context, f *config.Flags, log *slog.Logger) error {
	var errs []error
	if f.Cleanup {
		errs = append(errs, proxy.Cleanup(f.Instance))
	}
	if f.CleanupKubeProxy {
		errs = append(errs, migrate.RemoveKubeProxy(ctx, log))
	}
	return errors.Join(errs...)
}
