package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/memory"
	"github.com/berth-dev/berth/internal/network/ports"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/proxy"
)

// up is one running cluster. Its fields are set by the start stages in order
// and only read afterwards.
type up struct {
	*Config
	clock clock
	log   *slog.Logger
	logs  *logs
	crew  crew

	facts   host.Facts
	files   Files
	notes   []string
	runtime *containerd.Supervisor // nil with a runtime of the user's own
	// startedRuntime is true if this run started containerd; a failed start
	// then stops it again.
	startedRuntime bool
	store          *store.Store
	api            *api.Server
	// serverChoices are set once api is; the control socket asks for both.
	serverChoices atomic.Pointer[api.Options]
	admin         *rest.Config
	client        kubernetes.Interface
	informers     informers.SharedInformerFactory
	journal       *journal.Ring
	// tracer answers questions about packets and Services.
	tracer proxy.Tracer
	// board tells how nodes stand, for `berth why node`.
	board  health.Board
	policy *policy.Enforcer // nil without network policies
	ports  *ports.Checker   // nil where the pod network is somebody else's
	agent  launch.Config
	// metrics are those of controllers, scheduler and DNS.
	metrics registry

	// ends are those of the certificates of this machine.
	ends atomic.Pointer[[]CertificateEnd]

	mu      sync.Mutex
	ready   bool
	readyIn time.Duration
}

// Up runs a cluster until ctx ends. It reports each stage to emit; ready is
// closed once the node is Ready. A failing start stops what it started and
// removes what it made.
func Up(ctx context.Context, cfg *Config, emit Progress, ready chan<- struct{}) (err error) {
	debug.SetGCPercent(memory.GCPercent)
	u := &up{Config: cfg, clock: clock{began: time.Now(), emit: emit}}
	undo, err := u.prepare()
	if err != nil {
		return err
	}
	defer func() { undo(err) }()

	// Parts get a context of their own, so that a failing start and a normal
	// end both stop them before the store closes under them.
	parts, stopParts := context.WithCancel(ctx)
	defer func() {
		stopParts()
		u.crew.wait()
		if u.store != nil {
			u.store.Close()
		}
	}()
	if err := u.start(ctx, parts); err != nil {
		return err
	}
	u.mu.Lock()
	u.ready, u.readyIn = true, time.Since(u.clock.began)
	u.mu.Unlock()
	close(ready)
	u.crew.start(parts, part{"memory", func(ctx context.Context) error {
		memory.ReleasePeriodically(ctx, u.log)
		return nil
	}})
	if u.store != nil { // an API server with much to do may hold more
		u.crew.start(parts, part{"memory pace", func(ctx context.Context) error {
			memory.TuneGC(ctx)
			return nil
		}})
	}
	if u.Role.control() {
		u.crew.start(parts, part{"certificates", u.renewCertificates})
	}
	var stopped <-chan struct{}
	if u.store != nil {
		stopped = u.store.Stopped()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-stopped:
		return errors.New("the store stopped: see logs/etcd.log in the data directory")
	}
}

// prepare checks the machine and takes the data directory. The undo it
// returns frees it again and, after a failed first start, removes it.
func (u *up) prepare() (undo func(error), err error) {
	err = u.clock.stage("checks", func() (string, error) {
		if pid := Running(u.DataDir); pid != 0 {
			return "", &ErrRunning{u.DataDir, pid}
		}
		var err error
		u.facts, err = u.preflight()
		return fmt.Sprintf("cgroups %s, %s free for everything", u.facts.Cgroups, u.DataDir), err
	})
	if err != nil {
		return nil, err
	}
	_, statErr := os.Stat(u.settingsFile())
	fresh := errors.Is(statErr, os.ErrNotExist) && onlyOurs(u.DataDir)
	if err := os.MkdirAll(u.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	release, err := lock(u.DataDir)
	if err != nil {
		return nil, err
	}
	undo = func(failure error) {
		if failure != nil && u.startedRuntime {
			stop, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := u.runtime.Stop(stop); err != nil {
				u.log.Error("stopping the runtime after a failed start", "error", err)
			}
		}
		if failure != nil && !u.isReady() && u.Role.node() {
			if err := volume.UnshareRoot(u.Path("agent")); err != nil {
				u.log.Error("undoing a failed start", "error", err)
			}
		}
		if failure != nil && fresh && !u.isReady() {
			// The logs stay: the message names them.
			if err := u.purge("logs"); err != nil {
				u.clock.note("undo", err.Error())
			}
		}
		if u.journal != nil {
			if err := u.journal.Close(); err != nil {
				u.log.Error("closing the journal", "error", err)
			}
		}
		if u.logs != nil {
			u.logs.close()
		}
		release()
	}
	if u.logs, err = newLogs(u.Path("logs"), u.LogFormat, u.LogLevel); err == nil {
		u.log, err = u.logs.part("berth")
		u.crew.log = u.log
	}
	if err == nil {
		err = u.save()
	}
	if err == nil {
		err = u.dropStaleRun(u.facts.BootID)
	}
	if err != nil {
		undo(err)
		return nil, err
	}
	return undo, nil
}

// start brings the parts up. Runtime and control plane do not depend on each
// other until the agent needs both.
func (u *up) start(ctx, parts context.Context) error {
	var err error
	if u.Role.control() {
		err = u.clock.stage("certificates", func() (string, error) {
			var wrote int
			var err error
			u.files, wrote, err = u.certificates(time.Now())
			u.ends.Store(&u.files.Ends)
			return fmt.Sprintf("%d made or renewed", wrote), err
		})
		if err != nil {
			return err
		}
	}
	if u.journal, err = journal.Open(u.Path("journal"), journal.Limits{}); err != nil {
		return fmt.Errorf("opening the journal: %w", err)
	}
	both, ctxBoth := errgroup.WithContext(ctx)
	if u.Role.node() {
		both.Go(func() error { return u.startRuntime(ctxBoth, parts) })
	}
	if u.Role.control() {
		both.Go(func() error { return u.startControl(ctxBoth, parts) })
	} else {
		both.Go(func() error { return u.startMember(ctxBoth, parts) })
	}
	if err := both.Wait(); err != nil {
		return err
	}
	if err := u.serveStatus(parts); err != nil {
		return err
	}
	if u.Role.node() {
		return u.startNode(ctx, parts)
	}
	return nil
}

// startMember connects a node to the control plane that runs elsewhere.
func (u *up) startMember(ctx, parts context.Context) error {
	if err := u.connect(ctx); err != nil {
		return err
	}
	u.metrics = newRegistry()
	if err := u.serveMetrics(parts, u.metrics); err != nil {
		return err
	}
	u.shareInformers(parts)
	if err := u.startDNS(parts); err != nil {
		return err
	}
	u.informers.Start(parts.Done())
	return nil
}

// shareInformers makes the informers that all parts of this process share.
func (u *up) shareInformers(parts context.Context) {
	// Nobody here reads managed fields, and they are half of many objects.
	u.informers = lasting{informers.NewSharedInformerFactoryWithOptions(u.client, 0, informers.WithTransform(dropManagedFields)), parts}
}

func (u *up) startRuntime(ctx, parts context.Context) error {
	// Before the runtime or the agent mounts anything there.
	if err := volume.ShareRoot(u.Path("agent")); err != nil {
		u.notes = append(u.notes, "mounts do not propagate between containers and the node: "+err.Error())
	}
	if u.RuntimeEndpoint != "" {
		return u.clock.stage("images", func() (string, error) {
			detail, err := u.importImages(ctx, trimUnix(u.RuntimeEndpoint))
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w: --container-runtime-endpoint %s must be the socket of a running containerd", err, u.RuntimeEndpoint)
			}
			return detail, err
		})
	}
	log, err := u.logs.part("runtime")
	if err != nil {
		return err
	}
	err = u.clock.stage("runtime", func() (string, error) {
		s, notes, err := u.supervisor(ctx, u.facts, log)
		if err != nil {
			return "", err
		}
		u.runtime, u.notes = s, append(u.notes, notes...)
		pid, adopted, err := s.Ensure(ctx)
		u.startedRuntime = !adopted
		if err != nil {
			return "", err
		}
		u.crew.start(parts, part{"runtime watch", func(ctx context.Context) error { s.Watch(ctx, pid); return ctx.Err() }})
		how := "started"
		if adopted {
			how = "found running"
		}
		return fmt.Sprintf("containerd %s, process %d", how, pid), nil
	})
	if err != nil {
		return err
	}
	return u.clock.stage("images", func() (string, error) { return u.importImages(ctx, u.runtime.Socket()) })
}

func (u *up) startControl(ctx, parts context.Context) error {
	log, err := u.logs.part("api")
	if err != nil {
		return err
	}
	u.logs.libraries(log)
	options, err := u.serverOptions()
	if err != nil {
		return err
	}
	err = u.clock.stage("store", func() (string, error) {
		cfg := store.Config{DataDir: u.Path("etcd"), Servers: u.EtcdServers, CAFile: u.EtcdCAFile, CertFile: u.EtcdCertFile, KeyFile: u.EtcdKeyFile,
			LogFile: u.Path("logs", "etcd.log"), Log: log, SpaceChanged: u.tellSpace}
		var err error
		u.store, err = store.Start(ctx, cfg)
		return "", err
	})
	if err != nil {
		return err
	}
	err = u.clock.stage("api", func() (string, error) {
		f := u.files
		srv, err := api.New(api.Config{
			Store: u.store, Port: u.Ports.API, AdvertiseAddress: net.ParseIP(u.NodeIP), ServiceCIDRs: strings.Split(u.ServiceCIDR, ","), Log: log, Options: options,
			LocalAgent: u.localAgent(),
			PKI: api.PKI{
				ClientCA: f.CA.Cert, ServingCert: f.API.Cert, ServingKey: f.API.Key,
				ServiceAccountKey: f.ServiceAccountKey, ServiceAccountPublicKeys: []string{f.ServiceAccountPub},
				ServiceAccountIssuer: "https://kubernetes.default.svc." + u.ClusterDomain,
				KubeletCA:            f.AgentTrust, KubeletClientCert: f.KubeletClient.Cert, KubeletClientKey: f.KubeletClient.Key,
				FrontProxyCA: f.FrontProxyCA.Cert, FrontProxyCert: f.FrontProxyClient.Cert, FrontProxyKey: f.FrontProxyClient.Key,
			},
		})
		if err != nil {
			return "", err
		}
		u.api = srv
		u.serverChoices.Store(options)
		ended := make(chan error, 1)
		u.crew.start(parts, part{"api server", func(ctx context.Context) error {
			err := srv.Run(ctx)
			ended <- err
			return err
		}})
		select {
		case <-srv.Ready():
		case err := <-ended:
			return "", fmt.Errorf("the API server ended at start: %w", err)
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return fmt.Sprintf("https://%s:%d", u.NodeIP, u.Ports.API), nil
	})
	if err != nil {
		return err
	}
	u.admin = srvConfig(u.api)
	if u.client, err = kubernetes.NewForConfig(u.admin); err != nil {
		return fmt.Errorf("making the cluster's own client: %w", err)
	}
	if err := grant(ctx, u.client); err != nil {
		return err
	}
	u.shareInformers(parts)
	if err := u.startControllers(parts); err != nil {
		return err
	}
	if err := u.startDNS(parts); err != nil {
		return err
	}
	// A part of its own: it is tried again until the API takes it.
	u.crew.start(parts, part{"invitation", func(ctx context.Context) error {
		if err := invite(ctx, u.client, Shared{ClusterCIDR: u.ClusterCIDR, ServiceCIDR: u.ServiceCIDR, ClusterDomain: u.ClusterDomain, Network: u.Network}); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}})
	return nil
}

// dropManagedFields trims what the shared informers keep.
func dropManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// srvConfig is the loopback client without client-side limits: the parts of
// one process do not wait for each other.
func srvConfig(s *api.Server) *rest.Config {
	cfg := rest.CopyConfig(s.LoopbackConfig())
	cfg.QPS, cfg.Burst = -1, 0
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg
}

func (u *up) isReady() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready
}
