package runtime

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// operations counts and times calls to the runtime, under the names that
// dashboards of nodes know.
type operations struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
}

// Measure returns the services with every call counted and timed; the
// collectors are to be registered by the caller.
func Measure(svc Service, images ImageService) (Service, ImageService, []prometheus.Collector) {
	label := []string{"operation_type"}
	o := &operations{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_total",
			Help: "Calls to the container runtime, by kind."}, label),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_errors_total",
			Help: "Calls to the container runtime that failed, by kind."}, label),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Seconds that calls to the container runtime took, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 14),
		}, label),
	}
	return measured{svc, o}, measuredImages{images, o}, []prometheus.Collector{o.total, o.errors, o.duration}
}

func (o *operations) note(kind string, began time.Time, err error) {
	o.total.WithLabelValues(kind).Inc()
	o.duration.WithLabelValues(kind).Observe(time.Since(began).Seconds())
	if err != nil {
		o.errors.WithLabelValues(kind).Inc()
	}
}

func timed[T any](o *operations, kind string, call func() (T, error)) (T, error) {
	began := time.Now()
	out, err := call()
	o.note(kind, began, err)
	return out, err
}

func (o *operations) do(kind string, call func() error) error {
	_, err := timed(o, kind, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// measured is a Service whose calls are counted.
type measured struct {
	Service
	*operations
}

// Each method is the Service's own, counted.

func (m measured) Version(ctx context.Context, version string) (*runtimeapi.VersionResponse, error) {
	return timed(m.operations, "version", func() (*runtimeapi.VersionResponse, error) { return m.Service.Version(ctx, version) })
}

func (m measured) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return timed(m.operations, "status", func() (*runtimeapi.StatusResponse, error) { return m.Service.Status(ctx, verbose) })
}

func (m measured) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	return timed(m.operations, "run_podsandbox", func() (string, error) { return m.Service.RunPodSandbox(ctx, config, handler) })
}

func (m measured) StopPodSandbox(ctx context.Context, id string) error {
	return m.do("stop_podsandbox", func() error { return m.Service.StopPodSandbox(ctx, id) })
}

func (m measured) RemovePodSandbox(ctx context.Context, id string) error {
	return m.do("remove_podsandbox", func() error { return m.Service.RemovePodSandbox(ctx, id) })
}

func (m measured) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return timed(m.operations, "podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return m.Service.PodSandboxStatus(ctx, id, verbose)
	})
}

func (m measured) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return timed(m.operations, "list_podsandbox", func() ([]*runtimeapi.PodSandbox, error) { return m.Service.ListPodSandbox(ctx, filter) })
}

func (m measured) CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig) (string, error) {
	return timed(m.operations, "create_container", func() (string, error) {
		return m.Service.CreateContainer(ctx, sandbox, config,
			sandboxConfig)
	})
}

func (m measured) StartContainer(ctx context.Context, id string) error {
	return m.do("start_container", func() error { return m.Service.StartContainer(ctx, id) })
}

func (m measured) StopContainer(ctx context.Context, id string, timeout int64) error {
	return m.do("stop_container", func() error { return m.Service.StopContainer(ctx, id, timeout) })
}

func (m measured) RemoveContainer(ctx context.Context, id string) error {
	return m.do("remove_container", func() error { return m.Service.RemoveContainer(ctx, id) })
}

func (m measured) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return timed(m.operations, "list_containers", func() ([]*runtimeapi.Container, error) { return m.Service.ListContainers(ctx, filter) })
}

func (m measured) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return timed(m.operations, "container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return m.Service.ContainerStatus(ctx, id, verbose)
	})
}

func (m measured) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error {
	return m.do("update_container", func() error { return m.Service.UpdateContainerResources(ctx, id, r) })
}

func (m measured) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	began := time.Now()
	stdout, stderr, err = m.Service.ExecSync(ctx, id, cmd, timeout)
	m.note("exec_sync", began, err)
	return stdout, stderr, err
}

func (m measured) ReopenContainerLog(ctx context.Context, id string) error {
	return m.do("reopen_container_log", func() error { return m.Service.ReopenContainerLog(ctx, id) })
}

func (m measured) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return timed(m.operations, "exec", func() (*runtimeapi.ExecResponse, error) { return m.Service.Exec(ctx, r) })
}

func (m measured) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return timed(m.operations, "attach", func() (*runtimeapi.AttachResponse, error) { return m.Service.Attach(ctx, r) })
}

func (m measured) PortForward(ctx context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return timed(m.operations, "port_forward", func() (*runtimeapi.PortForwardResponse, error) { return m.Service.PortForward(ctx, r) })
}

// measuredImages is an ImageService whose calls are counted.
type measuredImages struct {
	ImageService
	*operations
}

func (m measuredImages) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return timed(m.operations, "list_images", func() ([]*runtimeapi.Image, error) { return m.ImageService.ListImages(ctx, filter) })
}

func (m measuredImages) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse,
	error) {
	return timed(m.operations, "image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return m.ImageService.ImageStatus(ctx, image, verbose)
	})
}

func (m measuredImages) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig,
	sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	return timed(m.operations, "pull_image", func() (string, error) { return m.ImageService.PullImage(ctx, image, auth, sandbox) })
}

func (m measuredImages) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return m.do("remove_image", func() error { return m.ImageService.RemoveImage(ctx, image) })
}
