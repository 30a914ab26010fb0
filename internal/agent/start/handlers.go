package start

import (
	"context"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/container"
)

// Handlers knows what the runtime's handlers can do.
type Handlers struct {
	mu   sync.Mutex
	what map[string]container.RuntimeFeatures
}

// Ask asks the runtime; what it does not say is taken as missing.
func (h *Handlers) Ask(ctx context.Context, runtime interface {
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
}) {
	st, err := runtime.Status(ctx, false)
	if err != nil {
		return
	}
	what := map[string]container.RuntimeFeatures{}
	for _, r := range st.GetRuntimeHandlers() {
		f := r.GetFeatures()
		what[r.GetName()] = container.RuntimeFeatures{
			RecursiveReadOnly: f.GetRecursiveReadOnlyMounts(), UserNamespaces: f.GetUserNamespaces(),
			SupplementalGroupsPolicy: st.GetFeatures().GetSupplementalGroupsPolicy(),
			MountOptions:             st.GetFeatures().GetMountOptions(),
		}
	}
	h.mu.Lock()
	h.what = what
	h.mu.Unlock()
}

// Of is what a handler can do; the default one has no name.
func (h *Handlers) Of(name string) container.RuntimeFeatures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.what[name]
}
