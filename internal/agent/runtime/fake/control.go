package fake

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func clonePB[M proto.Message](m M) M { return proto.Clone(m).(M) }

// emit sends an event to all streams; r.mu is held. A stream that is not read
// loses events, as it does with the real thing.
func (r *Runtime) emit(id, sandboxID string, kind runtimeapi.ContainerEventType) {
	close(r.changed)
	r.changed = make(chan struct{})
	if len(r.streams) == 0 {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: r.now().UnixNano()}
	if b, ok := r.sandboxes[sandboxID]; ok {
		e.PodSandboxStatus = b.status
	}
	for _, c := range r.containers {
		if c.sandbox == sandboxID {
			e.ContainersStatuses = append(e.ContainersStatuses, c.status)
		}
	}
	for s := range r.streams {
		select {
		case s <- e:
		default:
		}
	}
}

// exit ends a container that was created or runs; r.mu is held.
func (r *Runtime) exit(id string, code int32, reason string) {
	c, ok := r.containers[id]
	if !ok || c.status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	next := clonePB(c.status)
	next.State, next.ExitCode, next.Reason, next.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, reason, r.now().UnixNano()
	c.status = next
	r.emit(id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// Exit makes a running container end by itself.
func (r *Runtime) Exit(id string, code int32, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exit(id, code, reason)
}

// ExitByName ends the running container of that name in the pod, if any, and
// tells whether there was one.
func (r *Runtime) ExitByName(podUID, name string, code int32, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if c.status.State == runtimeapi.ContainerState_CONTAINER_RUNNING && c.status.Metadata.Name == name &&
			r.sandboxes[c.sandbox].status.Metadata.Uid == podUID {
			r.exit(id, code, reason)
			return true
		}
	}
	return false
}

// LoseSandbox makes the pod's ready sandbox die, with everything in it.
func (r *Runtime) LoseSandbox(podUID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, b := range r.sandboxes {
		if b.status.Metadata.Uid == podUID && b.status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			for cid, c := range r.containers {
				if c.sandbox == id {
					r.exit(cid, 137, "Error")
				}
			}
			r.endSandbox(id, b)
			return true
		}
	}
	return false
}

// Changed returns a channel that is closed at the next change of anything.
func (r *Runtime) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// GetContainerEvents streams events until ctx ends.
func (r *Runtime) GetContainerEvents(ctx context.Context, out chan *runtimeapi.ContainerEventResponse,
	connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	if err := r.before(ctx, "GetContainerEvents", ""); err != nil {
		return err
	}
	if r.NoEvents {
		return status.Error(codes.Unimplemented, "unknown method GetContainerEvents")
	}
	in := make(chan *runtimeapi.ContainerEventResponse, 1024)
	r.mu.Lock()
	r.streams[in] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.streams, in)
		r.mu.Unlock()
	}()
	if connected != nil {
		connected(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case e := <-in:
			select {
			case out <- e:
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
	}
}

// AddImage makes an image present.
func (r *Runtime) AddImage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: 1}
}

// ListImages lists the present images.
func (r *Runtime) ListImages(ctx context.Context, _ *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if err := r.before(ctx, "ListImages", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*runtimeapi.Image
	for _, i := range r.images {
		out = append(out, i)
	}
	return out, nil
}

// ImageStatus returns an image, or an empty answer when it is not present.
func (r *Runtime) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	if err := r.before(ctx, "ImageStatus", image.GetImage()); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: r.images[image.GetImage()]}, nil
}

// PullImage makes the image present.
func (r *Runtime) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig,
	_ *runtimeapi.PodSandboxConfig) (string, error) {
	if err := r.before(ctx, "PullImage", image.GetImage()); err != nil {
		return "", err
	}
	r.AddImage(image.GetImage())
	return image.GetImage(), nil
}

// RemoveImage removes an image.
func (r *Runtime) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	if err := r.before(ctx, "RemoveImage", image.GetImage()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.images, image.GetImage())
	return nil
}

// unsupported answers Unimplemented to what the fake does not do.
type unsupported struct{}

func no(call string) error { return status.Error(codes.Unimplemented, "unknown method "+call) }

func (unsupported) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return nil, no("Exec")
}
func (unsupported) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, no("Attach")
}
func (unsupported) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return nil, no("PortForward")
}
func (unsupported) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return no("CheckpointContainer")
}
func (unsupported) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) error {
	return no("CheckpointPod")
}
func (unsupported) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, no("RestorePod")
}
func (unsupported) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (
	*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return nil, no("UpdatePodSandboxResources")
}
func (unsupported) ContainerStats(context.Context, string) (*runtimeapi.ContainerStats, error) {
	return nil, no("ContainerStats")
}
func (unsupported) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, no("ListContainerStats")
}
func (unsupported) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, no("PodSandboxStats")
}
func (unsupported) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, no("ListPodSandboxStats")
}
func (unsupported) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, no("ListMetricDescriptors")
}
func (unsupported) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, no("ListPodSandboxMetrics")
}
func (unsupported) UpdateRuntimeConfig(context.Context, *runtimeapi.RuntimeConfig) error {
	return no("UpdateRuntimeConfig")
}
func (unsupported) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return nil, no("RuntimeConfig")
}
func (unsupported) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return nil, no("ImageFsInfo")
}

var (
	_ internalapi.RuntimeService      = (*Runtime)(nil)
	_ internalapi.ImageManagerService = (*Runtime)(nil)
)
