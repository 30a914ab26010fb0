package pod

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// volumes brings a pod's volumes to the node and away again. Every call may
// take as long as it must (it hangs one pod only), ends when its context does
// and may be repeated.
type volumes interface {
	// Mount returns once every volume of the pod is there.
	Mount(ctx context.Context, pod *v1.Pod) error
	// Unmount removes all volumes of a pod; what is not there is no error.
	Unmount(ctx context.Context, uid types.UID) error
	// Update takes a changed pod whose volumes are mounted; it must not block.
	Update(pod *v1.Pod)
}

// Images makes images present.
type Images interface {
	// Ensure applies the container's pull policy and returns the reference to
	// run. A *Error says why not in the words of the status.
	Ensure(ctx context.Context, pod *v1.Pod, c *v1.Container) (ref string, err error)
}

// StartInput is what a container configuration is made for.
type StartInput struct {
	Pod       *v1.Pod
	Container *v1.Container
	Attempt   uint32
	ImageRef  string
	// SandboxID and PodIPs are of the sandbox it goes into.
	SandboxID string
	PodIPs    []string
	// TargetID is the container whose processes an ephemeral container sees.
	TargetID string
}

// Configs makes the CRI configurations of a pod.
type Configs interface {
	Sandbox(ctx context.Context, pod *v1.Pod, attempt uint32) (cfg *runtimeapi.PodSandboxConfig, handler string, err error)
	// Container also returns the sandbox configuration that CRI wants beside it.
	Container(ctx context.Context, in StartInput) (*runtimeapi.ContainerConfig, *runtimeapi.PodSandboxConfig, error)
}

// Cgroups holds the pods' cgroups.
type Cgroups interface {
	Ensure(pod *v1.Pod) error
	// Remove removes a pod's cgroup and ends what is still in it.
	Remove(uid types.UID) error
}

// Admitter decides whether the node takes a pod. adopted pods run already:
// they are counted, never refused.
type Admitter interface {
	Admit(ctx context.Context, pod *v1.Pod, adopted bool) *Rejection
	// Resize decides whether an admitted pod may have other resources.
	Resize(ctx context.Context, desired *v1.Pod) *Rejection
	// Settled tells that a pod no longer asks for other resources.
	Settled(uid types.UID)
	// Forget gives back what an admitted pod held.
	Forget(uid types.UID)
}

// Resizer changes the resources of running containers.
type Resizer interface {
	// Resize makes the pod's cgroup and its running containers (IDs by name)
	// have what the pod says. It may be repeated.
	Resize(ctx context.Context, pod *v1.Pod, running map[string]string) error
}

// Hooks runs lifecycle handlers.
type Hooks interface {
	Run(ctx context.Context, in Hook) error
}

// Hook is one lifecycle handler to run.
type Hook struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string
	PodIP       string
	Handler     *v1.LifecycleHandler
}

// Target is one running container that may have probes.
type Target struct {
	Pod         *v1.Pod
	Container   *v1.Container
	ContainerID string
	PodIP       string
	StartedAt   time.Time
	// Before is what was known of it when this agent began to look.
	Before Probe
	// Ending: only readiness still counts.
	Ending bool
}

// probes watches running containers.
type probes interface {
	// Sync replaces the containers watched for a pod; none ends the watch. It
	// must not block.
	Sync(uid types.UID, targets []Target)
	// Results returns what is known by container ID. A container without
	// probes, or whose probes have not run, has no entry.
	Results(uid types.UID) map[string]Probe
}

// Runtime is the runtime and the picture of what it holds.
type Runtime interface {
	Pod(uid types.UID) *runtime.Pod
	Pods() []types.UID
	RefreshSandbox(ctx context.Context, id string) (bool, error)
	RefreshContainer(ctx context.Context, sandboxID, id string) (bool, error)
	Remove(id string) bool
	Synced() <-chan struct{}
}

// Error is a failure in the words that a container's status shows.
type Error struct {
	// Reason is one of the API's waiting reasons ("ErrImagePull").
	Reason string
	// Message is for the status; it never holds secrets.
	Message string
	// RetryAt, when set, is when trying again makes sense.
	RetryAt time.Time
	Cause   error
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns what was behind it.
func (e *Error) Unwrap() error { return e.Cause }

// failure turns an error into what the plan remembers; reason is used for
// errors that bring none of their own.
func failure(err error, reason string) *actionFailure {
	var e *Error
	if errors.As(err, &e) {
		return &actionFailure{Reason: e.Reason, Message: e.Message, RetryAt: e.RetryAt}
	}
	return &actionFailure{Reason: reason, Message: err.Error()}
}
