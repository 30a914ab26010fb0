// Package fake is a container runtime in memory. It implements the same CRI
// interfaces as the real client, keeps the same rules (names are reserved,
// states only go forward, a stopped sandbox takes its containers with it) and
// answers with the same error codes; the contract suite holds it to that.
package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the fake. Its zero value is not usable; use New.
type Runtime struct {
	unsupported // answers for the rest of the interface

	mu         sync.Mutex
	now        func() time.Time
	seq        int
	sandboxes  map[string]*sandbox
	containers map[string]*container
	streams    map[chan *runtimeapi.ContainerEventResponse]struct{}
	changed    chan struct{} // closed and replaced at each change
	images     map[string]*runtimeapi.Image

	// NoEvents makes the event stream answer Unimplemented.
	NoEvents bool
	// NetworkDown, when set, makes sandboxes on the pod network fail with it.
	NetworkDown string
	// Before is called before each call with its name and its object's ID or
	// pod name; an error is the answer. It may block until ctx ends.
	Before func(ctx context.Context, call, object string) error
	// Calls counts calls by name.
	Calls map[string]int
	// OnExec answers ExecSync; nil succeeds with no output.
	OnExec func(id string, cmd []string) (stdout, stderr []byte, err error)
	// Run, when set, is what a started container does: it returns the exit code
	// and whether it ends at once.
	Run func(cfg *runtimeapi.ContainerConfig) (exit int32, ends bool)
	// IgnoresStop lists container names that do not end on their stop signal;
	// they are killed when the timeout is over.
	IgnoresStop map[string]bool
}

type sandbox struct {
	status *runtimeapi.PodSandboxStatus
	config *runtimeapi.PodSandboxConfig
}

type container struct {
	sandbox string
	status  *runtimeapi.ContainerStatus
	config  *runtimeapi.ContainerConfig
}

// New makes an empty runtime. now may be nil for the wall clock.
func New(now func() time.Time) *Runtime {
	if now == nil {
		now = time.Now
	}
	return &Runtime{
		now: now, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		streams: map[chan *runtimeapi.ContainerEventResponse]struct{}{}, changed: make(chan struct{}),
		images: map[string]*runtimeapi.Image{}, Calls: map[string]int{}, IgnoresStop: map[string]bool{},
	}
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", kind, id)
}

func (r *Runtime) before(ctx context.Context, call, object string) error {
	r.mu.Lock()
	r.Calls[call]++
	hook := r.Before
	r.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, call, object); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// stamp returns a time that is later than every one before.
func (r *Runtime) stamp() int64 {
	r.seq++
	return r.now().UnixNano() + int64(r.seq)
}

// Version names the runtime.
func (r *Runtime) Version(ctx context.Context, _ string) (*runtimeapi.VersionResponse, error) {
	if err := r.before(ctx, "Version", ""); err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v1", RuntimeApiVersion: "v1"}, nil
}

// Status tells that runtime and network are ready, or what NetworkDown says.
func (r *Runtime) Status(ctx context.Context, _ bool) (*runtimeapi.StatusResponse, error) {
	if err := r.before(ctx, "Status", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: r.NetworkDown == ""}
	if r.NetworkDown != "" {
		network.Reason, network.Message = "NetworkPluginNotReady", r.NetworkDown
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, network,
	}}}, nil
}

// RunPodSandbox makes a ready sandbox.
func (r *Runtime) RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if err := r.before(ctx, "RunPodSandbox", cfg.GetMetadata().GetName()); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	meta := cfg.GetMetadata()
	if meta.GetName() == "" || meta.GetUid() == "" {
		return "", status.Error(codes.InvalidArgument, "sandbox config must include metadata")
	}
	for id, b := range r.sandboxes {
		if m := b.status.Metadata; m.Uid == meta.Uid && m.Name == meta.Name && m.Namespace == meta.Namespace && m.Attempt == meta.Attempt {
			return "", status.Errorf(codes.Unknown, "failed to reserve sandbox name: name is reserved for %q", id)
		}
	}
	host := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	if !host && r.NetworkDown != "" {
		return "", status.Errorf(codes.Unknown, "failed to setup network for sandbox: %s", r.NetworkDown)
	}
	at := r.stamp()
	id := fmt.Sprintf("sb%04d", r.seq)
	st := &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: meta, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: at,
		Network: &runtimeapi.PodSandboxNetworkStatus{}, RuntimeHandler: handler,
		Labels: maps.Clone(cfg.GetLabels()), Annotations: maps.Clone(cfg.GetAnnotations()),
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
	if !host {
		st.Network.Ip = fmt.Sprintf("10.88.%d.%d", r.seq/250, r.seq%250+2)
	}
	r.sandboxes[id] = &sandbox{status: st, config: cfg}
	r.emit(id, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.emit(id, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return id, nil
}

// StopPodSandbox ends the sandbox and, by force, what runs in it.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	if err := r.before(ctx, "StopPodSandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.sandboxes[id]
	if !ok {
		return nil
	}
	for cid, c := range r.containers {
		if c.sandbox == id {
			r.exit(cid, 137, "Error")
		}
	}
	r.endSandbox(id, b)
	return nil
}

func (r *Runtime) endSandbox(id string, b *sandbox) {
	if b.status.State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		return
	}
	next := clonePB(b.status)
	next.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	b.status = next
	r.emit(id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// RemovePodSandbox removes the sandbox with everything in it.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	if err := r.before(ctx, "RemovePodSandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.sandboxes[id]
	if !ok {
		return nil
	}
	for cid, c := range r.containers {
		if c.sandbox == id {
			r.exit(cid, 137, "Error")
			r.drop(cid)
		}
	}
	r.endSandbox(id, b)
	delete(r.sandboxes, id)
	r.emit(id, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// PodSandboxStatus returns one sandbox.
func (r *Runtime) PodSandboxStatus(ctx context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := r.before(ctx, "PodSandboxStatus", id); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.sandboxes[id]
	if !ok {
		return nil, notFound("sandbox", id)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: b.status}, nil
}

// ListPodSandbox lists all sandboxes; filters are not looked at but for the ID.
func (r *Runtime) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	if err := r.before(ctx, "ListPodSandbox", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(r.sandboxes)) {
		s := r.sandboxes[id].status
		if f.GetId() != "" && f.GetId() != id || !within(s.Labels, f.GetLabelSelector()) {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{Id: id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels,
			Annotations: s.Annotations, RuntimeHandler: s.RuntimeHandler})
	}
	return out, nil
}

func within(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// CreateContainer makes a container in a ready sandbox.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (
	string, error) {
	if err := r.before(ctx, "CreateContainer", cfg.GetMetadata().GetName()); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.sandboxes[sandboxID]
	if !ok {
		return "", notFound("sandbox", sandboxID)
	}
	if b.status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return "", status.Errorf(codes.Unknown, "sandbox %q is not ready", sandboxID)
	}
	meta := cfg.GetMetadata()
	for id, c := range r.containers {
		if c.sandbox == sandboxID && c.status.Metadata.Name == meta.Name && c.status.Metadata.Attempt == meta.Attempt {
			return "", status.Errorf(codes.Unknown, "failed to reserve container name: name is reserved for %q", id)
		}
	}
	at := r.stamp()
	id := fmt.Sprintf("c%04d", r.seq)
	st := &runtimeapi.ContainerStatus{
		Id: id, Metadata: meta, State: runtimeapi.ContainerState_CONTAINER_CREATED, CreatedAt: at,
		Image: cfg.GetImage(), ImageRef: cfg.GetImage().GetImage(), Labels: maps.Clone(cfg.GetLabels()),
		Annotations: maps.Clone(cfg.GetAnnotations()), Mounts: cfg.GetMounts(),
		LogPath: b.config.GetLogDirectory() + "/" + cfg.GetLogPath(),
	}
	if st.Image == nil {
		st.Image = &runtimeapi.ImageSpec{}
	}
	r.containers[id] = &container{sandbox: sandboxID, status: st, config: cfg}
	r.emit(id, sandboxID, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return id, nil
}

// StartContainer starts a created container.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	if err := r.before(ctx, "StartContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return notFound("container", id)
	}
	if c.status.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		return status.Errorf(codes.Unknown, "container is in %s state", c.status.State)
	}
	if r.sandboxes[c.sandbox].status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandbox)
	}
	next := clonePB(c.status)
	next.State, next.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, r.now().UnixNano()
	c.status = next
	r.emit(id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if r.Run != nil {
		if code, ends := r.Run(c.config); ends {
			reason := "Completed"
			if code != 0 {
				reason = "Error"
			}
			r.exit(id, code, reason)
		}
	}
	return nil
}

// StopContainer ends a container at once, or after the timeout if its name is
// in IgnoresStop.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	if err := r.before(ctx, "StopContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	c, ok := r.containers[id]
	if !ok {
		r.mu.Unlock()
		return nil
	}
	if !r.IgnoresStop[c.config.GetMetadata().GetName()] {
		r.exit(id, 143, "Error")
		r.mu.Unlock()
		return nil
	}
	r.mu.Unlock()
	timer := time.NewTimer(time.Duration(timeout) * time.Second)
	defer timer.Stop()
	for {
		r.mu.Lock()
		c, ok := r.containers[id]
		over := !ok || c.status.State != runtimeapi.ContainerState_CONTAINER_RUNNING
		changed := r.changed
		r.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
			r.Exit(id, 137, "Error")
			return nil
		case <-changed:
		}
	}
}

// RemoveContainer removes a container that does not run.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	if err := r.before(ctx, "RemoveContainer", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.containers[id]; !ok {
		return nil
	}
	r.exit(id, 137, "Error")
	r.drop(id)
	return nil
}

func (r *Runtime) drop(id string) {
	sandboxID := r.containers[id].sandbox
	delete(r.containers, id)
	r.emit(id, sandboxID, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

// ListContainers lists all containers.
func (r *Runtime) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	if err := r.before(ctx, "ListContainers", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.Container
	for _, id := range slices.Sorted(maps.Keys(r.containers)) {
		c := r.containers[id]
		if f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox || f.GetId() != "" && f.GetId() != id ||
			!within(c.status.Labels, f.GetLabelSelector()) {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id: id, PodSandboxId: c.sandbox, Metadata: c.status.Metadata, Image: c.status.Image, ImageRef: c.status.ImageRef,
			State: c.status.State, CreatedAt: c.status.CreatedAt, Labels: c.status.Labels, Annotations: c.status.Annotations,
		})
	}
	return out, nil
}

// ContainerStatus returns one container.
func (r *Runtime) ContainerStatus(ctx context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if err := r.before(ctx, "ContainerStatus", id); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, notFound("container", id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.status}, nil
}

// UpdateContainerResources records the new resources.
func (r *Runtime) UpdateContainerResources(ctx context.Context, id string, res *runtimeapi.ContainerResources) error {
	if err := r.before(ctx, "UpdateContainerResources", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return notFound("container", id)
	}
	next := clonePB(c.status)
	next.Resources = res
	c.status = next
	return nil
}

// ExecSync runs OnExec.
func (r *Runtime) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if err := r.before(ctx, "ExecSync", id); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	c, ok := r.containers[id]
	on := r.OnExec
	running := ok && c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !ok {
		return nil, nil, notFound("container", id)
	}
	if !running {
		return nil, nil, status.Errorf(codes.Unknown, "container %q is not running", id)
	}
	if on == nil {
		return nil, nil, nil
	}
	return on(id, cmd)
}

// ReopenContainerLog does nothing: the fake writes no logs.
func (r *Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	return r.before(ctx, "ReopenContainerLog", id)
}

// Close does nothing.
func (r *Runtime) Close(context.Context) error { return nil }
