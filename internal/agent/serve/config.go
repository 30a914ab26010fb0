package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Pods is what the API shows of the pods of this node. Objects are shared:
// no one changes them.
type Pods interface {
	// List returns the pods the node should run, static ones included, with
	// their current status.
	List() []*v1.Pod
	// Get returns one of them.
	Get(namespace, name string) (*v1.Pod, bool)
	// Exited returns a channel that is closed once the container is not
	// running (any more). The channel need not be closed if ctx ends first.
	Exited(ctx context.Context, containerID string) <-chan struct{}
}

// Runtime is the part of a CRI runtime client that the API needs.
type Runtime interface {
	ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, containerID string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
	Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
	CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error
}

// Stats are measured when asked for.
type Stats interface {
	// Summary fills the summary API's answer; with onlyCPUAndMemory nothing
	// else is measured.
	Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error)
	// WriteResource writes /metrics/resource in the Prometheus text format.
	WriteResource(ctx context.Context, out io.Writer) error
	// WriteCAdvisor writes /metrics/cadvisor in the Prometheus text format.
	WriteCAdvisor(ctx context.Context, out io.Writer) error
}

// Check is a health check served below /healthz/.
type Check struct {
	Name  string
	Check func() error
}

// Config is all the role needs. Log, NodeName, Kubelet, Client, TLS, Pods and
// Runtime are required.
type Config struct {
	Log      *slog.Logger
	NodeName string
	// Kubelet is the effective configuration, which /configz shows.
	Kubelet *kubeletv1beta1.KubeletConfiguration
	// Client asks the API server who calls and whether they may.
	Client kubernetes.Interface
	// Issued is closed once TLS has a certificate; nil where it has one from the start.
	Issued <-chan struct{}
	// TLS brings the serving certificate (GetCertificate) and the limits on
	// versions and ciphers. Client certificates are handled here.
	TLS     *tls.Config
	Pods    Pods
	Runtime Runtime
	// Stats may be nil: then the stats endpoints answer 501.
	Stats Stats
	// Gather is what /metrics shows, Probes what /metrics/probes shows; nil
	// shows nothing.
	Gather prometheus.Gatherer
	Probes prometheus.Gatherer
	// Metrics takes the role's own metrics; nil is none.
	Metrics prometheus.Registerer
	// Calls answer what a kubelet does not.
	Calls Calls
	// Checks are added to "ping" on /healthz.
	Checks []Check
	// Tracer takes a span of each request; nil takes none.
	Tracer trace.TracerProvider
	// Flags are the command line's, by name, for /flagz; nil is none.
	Flags map[string]string
	// LogLevel is what PUT /debug/flags/v changes; nil refuses.
	LogLevel *slog.LevelVar
	// Logs are the host's.
	Logs SystemLogs
	// RootDir is the agent's directory, which holds checkpoints/.
	RootDir string
	// Listeners replace those that Kubelet's address and ports ask for.
	Listeners Listeners
}

// Calls are handlers of calls to parts of this node beside its pods, each with a
// right of its own; nil is none.
type Calls struct {
	// LocalVolumes answers the cluster's controller, for this node's driver of
	// local volumes.
	LocalVolumes http.Handler
	// Images answers for the runtime's image store.
	Images http.Handler
}

// SystemLogs are the logs of the host that /logs/ shows.
type SystemLogs struct {
	// Dir holds the files, default /var/log.
	Dir string
	// Journal asks the system's journal for /logs/?query=; nil runs journalctl.
	Journal func(ctx context.Context, args []string, out io.Writer) error
}

// Listeners are those of a caller that has opened them itself; each may be nil.
// They are closed at the end.
type Listeners struct {
	API, Healthz, ReadOnly net.Listener
}

// grace is how long running requests may go on after the context ended; streams
// are cut then.
const grace = 2 * time.Second

func (c *Config) complete() error {
	if c.Log == nil || c.NodeName == "" || c.Kubelet == nil || c.Client == nil || c.TLS == nil || c.Pods == nil || c.Runtime == nil {
		return errors.New("configuring the node's API: Log, NodeName, Kubelet, Client, TLS, Pods and Runtime are required")
	}
	if c.Logs.Dir == "" {
		c.Logs.Dir = "/var/log"
	}
	if c.Logs.Journal == nil {
		c.Logs.Journal = journalctl
	}
	return nil
}
