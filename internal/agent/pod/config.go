package pod

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
)

// Config is what a Manager works with. Everything but Client, Signals, Ended,
// Metrics and Now is required.
type Config struct {
	// Client writes statuses and deletes finished pods; nil runs without an API.
	Client  kubernetes.Interface
	Service runtime.Service
	Runtime Runtime
	// RuntimeName prefixes container IDs ("containerd").
	RuntimeName string
	Providers
	Admitter Admitter
	Hooks    Hooks
	Probes   probes
	// Signals, when set, reach the manager from now on.
	Signals *Signals
	// Node returns what statuses say of the node; it is called often.
	Node     func() Node
	Dirs     Dirs
	Recorder record.EventRecorder
	Journal  journal.Sink
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	// Ended, when set, gets pods of which nothing is left.
	Ended func(uid types.UID)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// SandboxPatience is how long the creation of a sandbox may go on that is
	// not wanted any more, 20 s by default. On a host at ease it takes a
	// tenth of one; a runtime whose caller hangs up while it starts a shim may
	// forget the process. An agent that ends waits a quarter of that.
	SandboxPatience time.Duration
}

// Providers give pods what their containers run with. All but Devices are
// required.
type Providers struct {
	Volumes volumes
	Images  Images
	Configs Configs
	Cgroups Cgroups
	Resizer Resizer
	// Devices, when set, returns the health of what a pod's containers were
	// given; it must not block.
	Devices func(pod *v1.Pod) map[string][]v1.ResourceStatus
}

// Dirs are where pods leave files.
type Dirs struct {
	// Root is the agent's directory, which holds pods/<uid>.
	Root string
	// Logs holds the pods' log directories.
	Logs string
	// Links, when set, gets a link per container log (/var/log/containers).
	Links string
}
