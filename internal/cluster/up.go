package cluster

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/localvolume"
	"github.com/berth-dev/berth/internal/manifests"
	"github.com/berth-dev/berth/internal/memory"
	"github.com/berth-dev/berth/internal/network/ports"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/snapshot"
	"github.com/berth-dev/berth/internal/supervise"
)

// up is one running cluster. Its fields are set by the steps of the start, in order,
// and only read afterwards.
type up struct {
	*Config
	clock clock
	log   *slog.Logger
	logs  *logs
	// parts is everything that runs, for as long as the cluster does.
	parts *supervise.Group

	prepared
	runtimeParts
	serverParts
	nodeParts

	store     *store.Store
	admin     *rest.Config
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	journal   *journal.Ring
	// board reports the health of nodes, for `berth why node`.
	board health.Board
	// metrics are those of controllers, scheduler and DNS.
	metrics registry

	// ends are those of the certificates of this host.
	ends atomic.Pointer[[]certificateEnd]
	// snapshots is how their schedule stands; nil without one.
	snapshots atomic.Pointer[snapshot.Progress]

	readiness
}

// prepared is what a start finds out before it starts anything.
type prepared struct {
	facts host.Facts
	files clusterFiles
	notes []string
}

// runtimeParts are those of the bundled container runtime.
type runtimeParts struct {
	runtime *containerd.Supervisor // nil with a runtime of the user's own
	// startedRuntime is true if this run started containerd; a failed start
	// then stops it again.
	startedRuntime bool
	// runtimeLacks says what keeps the bundled runtime from seccomp profiles.
	runtimeLacks string
}

// serverParts are those of the API server, on a host that runs one.
type serverParts struct {
	server    *api.Options
	serverLog *slog.Logger
	api       *api.Server
	// serverChoices are set once api is; the control socket asks for both.
	serverChoices atomic.Pointer[api.Options]
	// manifests applies a directory; nil without one.
	manifests *manifests.Manager
}

// nodeParts are those of a host that runs pods.
type nodeParts struct {
	// tracer answers questions about packets and Services.
	tracer proxy.Tracer
	policy *policy.Enforcer // nil without network policies
	ports  *ports.Checker   // nil where the pod network is another party's
	// volumes is the driver of local volumes; nil for a node without.
	volumes *localvolume.Driver
	agent   launch.Config
}

// readiness is whether the cluster was ready, and how long that took.
type readiness struct {
	mu      sync.Mutex
	ready   bool
	readyIn time.Duration
}

// lane orders the steps of a start: those of the runtime and those of the
// control plane do not need each other, so the two lanes go side by side.
type lane int

const (
	first lane = iota
	runtimeLane
	controlLane
	last
)

// step is one line of a start.
type step struct {
	lane lane
	here bool // this role has it
	run  func(context.Context) error
}

// steps is everything that a cluster starts, in order. What a step leaves
// running is a part of the group.
func (u *up) steps() []step {
	control, node := u.Role.control(), u.Role.node()
	return []step{
		{first, control, u.ensureCertificates},
		{first, true, u.openJournal},

		{runtimeLane, node, u.shareMounts},
		{runtimeLane, node, u.startRuntime},
		{runtimeLane, node, u.loadImages},

		{controlLane, control, u.configureServer},
		{controlLane, control, u.startStore},
		{controlLane, control, u.startAPI},
		{controlLane, control, u.grantIdentities},
		{controlLane, !control, u.connect},
		{controlLane, true, u.shareInformers},
		{controlLane, true, u.serveMetrics},
		{controlLane, control, u.startControllers},
		{controlLane, control, u.serveUI},
		{controlLane, true, u.startDNS},
		{controlLane, control, u.startClusterInfo},
		{controlLane, true, u.startInformers},

		{last, true, u.serveStatus},
		{last, node, u.filterBridge},
		{last, node, u.startNetwork},
		{last, node, u.startPorts},
		{last, node, u.startPolicy},
		{last, node, u.startVolumes},
		{last, node, u.configureAgent},
		{last, node, u.startProxy},
		{last, node, u.startAnnouncer},
		{last, node, u.startAgent},
	}
}

// Up runs a cluster until ctx ends. It reports each stage to emit; ready is
// closed once the node is Ready. A failing start stops what it started and
// removes what it made.
func Up(ctx context.Context, cfg *Config, emit Progress, ready chan<- struct{}) (err error) {
	debug.SetGCPercent(memory.StartGCPercent)
	u := &up{Config: cfg, clock: clock{began: time.Now(), emit: emit}}
	undo, err := u.prepare()
	if err != nil {
		return err
	}
	defer func() { undo(err) }()

	// A failing start and a normal end both stop the parts before the store
	// closes under them.
	u.parts = supervise.New(ctx, u.log, supervise.Reverse)
	defer func() {
		u.parts.Stop()
		if u.store != nil {
			u.store.Close()
		}
	}()
	if err := take(ctx, u.steps()); err != nil {
		return err
	}
	u.mu.Lock()
	u.ready, u.readyIn = true, time.Since(u.clock.began)
	u.mu.Unlock()
	close(ready)
	u.keep("memory", func(ctx context.Context) error {
		memory.ReleasePeriodically(ctx, u.log)
		return nil
	})
	u.keep("crash log", func(ctx context.Context) error {
		tick := time.NewTicker(crashLogCheck)
		defer tick.Stop()
		u.logs.boundCrashLog(ctx, tick.C, u.log)
		return nil
	})
	if u.Role.control() {
		u.keep("certificates", u.renewCertificates)
		if u.Snapshots.Every > 0 {
			u.keep("snapshots", u.scheduleSnapshots)
		}
	}
	var stopped <-chan struct{}
	if u.store != nil {
		stopped = u.store.Stopped()
		u.keep("memory pace", func(ctx context.Context) error { // an API server with much to do may hold more
			memory.TuneGC(ctx)
			return nil
		})
	}
	select {
	case <-u.parts.Context().Done():
		return u.parts.Wait()
	case <-stopped:
		return u.outliveStore(ctx)
	}
}

// take walks steps: the first ones, then both lanes side by side, then the last
// ones. The first failure ends the walk, and cancels the other lane.
func take(ctx context.Context, steps []step) error {
	walk := func(ctx context.Context, l lane) error {
		for _, s := range steps {
			if s.lane != l || !s.here {
				continue
			}
			if err := s.run(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(ctx, first); err != nil {
		return err
	}
	both, ctxBoth := errgroup.WithContext(ctx)
	both.Go(func() error { return walk(ctxBoth, runtimeLane) })
	both.Go(func() error { return walk(ctxBoth, controlLane) })
	if err := both.Wait(); err != nil {
		return err
	}
	return walk(ctx, last)
}

// keep runs a part for as long as the cluster runs, and again when it ends.
func (u *up) keep(name string, run func(context.Context) error) {
	u.parts.Start(supervise.Part{Name: name, Run: run, Restart: supervise.Always})
}

func (u *up) isReady() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready
}
