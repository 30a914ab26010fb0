package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	utilexec "k8s.io/utils/exec"
)

// ExecFunc runs a command in a container; an exit code is an answer, not an
// error.
type ExecFunc = func(ctx context.Context, id string, cmd []string, timeout time.Duration) (output []byte, exitCode int, err error)

// Exec runs commands in the containers of a runtime.
func Exec(service Service) ExecFunc {
	return func(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int, error) {
		// The client would log each failing probe as an error of its own.
		stdout, stderr, err := service.ExecSync(klog.NewContext(ctx, klog.Logger{}), id, cmd, timeout)
		out := append(stdout, stderr...)
		var exit utilexec.ExitError
		if errors.As(err, &exit) {
			return out, exit.ExitStatus(), nil
		}
		if errors.Is(err, cri.ErrCommandTimedOut) {
			// The runtime's clock may strike before ours; both mean the same.
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		return out, 0, err
	}
}
