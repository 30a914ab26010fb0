package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // those of clients and of leader election
	"k8s.io/component-base/metrics/prometheus/slis"
	"k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/clientbuilder"
	cmhealthz "k8s.io/controller-manager/pkg/healthz"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/nodes"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// process is a run of the command.
type process struct {
	*Options
	log     *slog.Logger
	config  *rest.Config
	client  kubernetes.Interface
	journal journal.Sink
	board   health.Board
	// watchdog tells /healthz of a lease that is not renewed.
	watchdog *leaderelection.HealthzAdaptor
}

// Run runs the controllers until ctx ends, or until leadership is lost: a
// process that is not sure to lead must not act, and starts again.
func Run(ctx context.Context, o *Options, log *slog.Logger) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	o.Metrics.Apply()
	p := &process{Options: o, log: log, journal: journal.Discard, watchdog: leaderelection.NewLeaderHealthzAdaptor(20 * time.Second)}
	if p.config, err = clientConfig(o); err != nil {
		return err
	}
	if p.client, err = kubernetes.NewForConfig(p.config); err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.DataDir != "" {
		done, err := p.keepJournal(ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	stopped, err := p.serve(ctx)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		<-stopped
	}()
	if !o.Generic.LeaderElection.LeaderElect {
		return p.control(ctx)
	}
	le := o.Generic.LeaderElection
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("naming this process for leader election: %w", err)
	}
	return kube.Lead(ctx, kube.Election{
		Client: p.client, Namespace: le.ResourceNamespace, Name: le.ResourceName, Identity: host + "_" + string(uuid.NewUUID()),
		LeaseDuration: le.LeaseDuration.Duration, RenewDeadline: le.RenewDeadline.Duration, RetryPeriod: le.RetryPeriod.Duration,
		Log: log, Events: kube.Events(ctx, p.client)("berth-controllers"), Watchdog: p.watchdog,
	}, p.control)
}

// clientConfig reads the kubeconfig as upstream does: flags win over it, and
// without any the pod's own account is used.
func clientConfig(o *Options) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags(o.Master, o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %q: %w", o.Kubeconfig, err)
	}
	conn := o.Generic.ClientConnection
	c.ContentType, c.AcceptContentTypes = conn.ContentType, conn.ContentType+",application/json"
	c.QPS, c.Burst, c.UserAgent = conn.QPS, int(conn.Burst), "berth-controllers"
	return c, nil
}

// control runs the controllers; it is called while leading.
func (p *process) control(ctx context.Context) error {
	shared := Shared{
		Client: p.client, Informers: informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithTransform(unmanaged)),
		Log: p.log, Journal: p.journal, Metrics: legacyregistry.Registerer(), Recorders: kube.NewRecorders(ctx), Board: &p.board,
	}
	if p.Shared.UseServiceAccountCredentials {
		builder := clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(p.config), p.client.CoreV1(), "kube-system")
		shared.Clients = func(c controller.Controller) (kubernetes.Interface, metadata.Interface, error) {
			client, err := builder.Client(c.Account)
			return client, nil, err
		}
	}
	defer shared.Informers.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Shutdown, which waits for the watches to end
	cfg, watch, err := p.Build(ctx, shared)
	if err != nil {
		return err
	}
	if watch == nil {
		return ignoreCanceled(nodes.Run(ctx, cfg))
	}
	ended := make(chan error, 2)
	go func() { ended <- watch(ctx) }()
	go func() { ended <- nodes.Run(ctx, cfg) }()
	err = <-ended
	cancel()
	return errors.Join(ignoreCanceled(err), ignoreCanceled(<-ended))
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// componentName is the role's name where tools look for it.
const componentName = "kube-controller-manager"

// serve answers /healthz, /metrics, /configz, /flagz, /statusz and profiles over
// HTTPS until ctx ends; stopped is closed when it has ended.
func (p *process) serve(ctx context.Context) (stopped <-chan struct{}, err error) {
	ended := make(chan struct{})
	if p.Serving.BindPort == 0 && p.Serving.Listener == nil {
		close(ended)
		return ended, nil
	}
	if err := p.Serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, fmt.Errorf("making a certificate for %s: %w", p.address(), err)
	}
	var secure *server.SecureServingInfo
	if err := p.Serving.ApplyTo(&secure); err != nil {
		return nil, fmt.Errorf("serving on %s: %w", p.address(), err)
	}
	var authn server.AuthenticationInfo
	var authz server.AuthorizationInfo
	if err := p.Authenticate.ApplyTo(&authn, secure, nil); err != nil {
		return nil, fmt.Errorf("setting up authentication for %s: %w", p.address(), err)
	}
	if err := p.Authorize.ApplyTo(&authz); err != nil {
		return nil, fmt.Errorf("setting up authorization for %s: %w", p.address(), err)
	}
	const group = "kubecontrollermanager.config.k8s.io"
	configz.Delete(group)
	shown, err := configz.New(group)
	if err != nil {
		return nil, fmt.Errorf("showing the configuration: %w", err)
	}
	effective, err := p.effective()
	if err != nil {
		return nil, err
	}
	shown.Set(effective)
	checks := []healthz.HealthChecker{healthz.PingHealthz}
	if p.Generic.LeaderElection.LeaderElect {
		checks = append(checks, p.watchdog)
	}
	mux := app.NewBaseHandler(&p.Generic.GenericControllerManagerConfiguration.Debugging, cmhealthz.NewMutableHealthzHandler(checks...))
	slis.SLIMetricsWithReset{}.Install(mux)
	flagz.Install(mux, componentName, p.Options)
	statusz.Install(mux, componentName,
		statusz.NewRegistry(nil, statusz.WithListedPaths([]string{"/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis"})))
	handler := app.BuildHandlerChain(mux, &authz, &authn)
	done, _, err := secure.Serve(handler, 0, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serving on %s: %w", p.address(), err)
	}
	p.log.Info("serving", "address", secure.Listener.Addr().String())
	return done, nil
}

// keepJournal opens the journal and answers berth why on a socket that only
// this user reaches.
func (p *process) keepJournal(ctx context.Context) (done func(), err error) {
	ring, err := journal.Open(filepath.Join(p.DataDir, "journal"), journal.Limits{})
	if err != nil {
		return nil, fmt.Errorf("opening the journal: %w", err)
	}
	p.journal = ring
	dir := filepath.Join(p.DataDir, "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("making the folder of the socket: %w", err), ring.Close())
	}
	path := filepath.Join(dir, "berth.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("clearing the socket: %w", err), ring.Close())
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for berth why: %w", err), ring.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /journal", health.WhyHandler(ring.Query, &p.board))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("answering berth why", "err", err)
		}
	}()
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	return func() {
		stop()
		srv.Close()
		<-ended
		if err := ring.Close(); err != nil {
			p.log.Error("closing the journal", "err", err)
		}
	}, nil
}
