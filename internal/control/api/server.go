package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	customserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	"github.com/berth-dev/berth/internal/control/api/aggregation"
	"github.com/berth-dev/berth/internal/control/api/encryption"
	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
	"github.com/berth-dev/berth/internal/control/auth"
	"github.com/berth-dev/berth/internal/control/auth/aggregate"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/ui"
)

// watchDrain bounds how long the end of open watches may take on shutdown.
const watchDrain = 2 * time.Second

// cacheTimeout bounds how long the start waits for the watch caches; without
// them the server serves more slowly, but it serves.
const cacheTimeout = 5 * time.Second

// customSyncTimeout bounds how long a server that is told to stop while it
// starts goes on starting.
const customSyncTimeout = 5 * time.Second

// resolveTimeout bounds how long finding a webhook's service may take.
const resolveTimeout = 5 * time.Second

// etcdHealthTimeout bounds the etcd part of a health check.
const etcdHealthTimeout = 2 * time.Second

// Server is an API server that listens but does not serve until Run.
type Server struct {
	cfg Config
	// front listens; behind it are our own groups, then custom resources.
	front      *aggregation.Front
	generic    *genericapiserver.GenericAPIServer
	backend    *backend
	client     kubernetes.Interface
	shared     informers.SharedInformerFactory
	auth       *auth.Auth
	advertised net.IP
	background []task
	// life ends when the server stops; encryption is nil where nothing is.
	life       context.Context //nolint:containedctx // providers of keys and tokens live as long
	encryption *encryption.Encryption
	caches     []rest.StorageWithReadiness
	openAPI    []*openapicommon.OpenAPIV3Config
	ready      chan struct{}
	// steps are the parts of the start by the names of their health checks.
	steps map[string]*step
	// customSynced closes when all custom resource definitions are known.
	customSynced <-chan struct{}
}

// New opens the listener and builds all storages. Run must follow, or Close.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	set := scheme.Shared()
	conf := genericapiserver.NewConfig(set.Codecs)
	if err := configureServing(&cfg, conf); err != nil {
		return nil, err
	}
	s, err := build(cfg, set, conf)
	if err != nil {
		conf.SecureServing.Listener.Close()
		return nil, err
	}
	return s, nil
}

func build(cfg Config, set *scheme.Set, conf *genericapiserver.Config) (*Server, error) {
	client, err := kubernetes.NewForConfig(conf.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("making loopback client: %w", err)
	}
	s := &Server{
		cfg:    cfg,
		client: client,
		shared: informers.NewSharedInformerFactory(client, 0),
		ready:  make(chan struct{}),
		steps:  newSteps(cfg.PriorityAndFairness),
		life:   wait.ContextForChannel(conf.DrainedNotify()),
	}
	if err := s.configureAuth(conf); err != nil {
		return nil, err
	}
	if err := s.configureAdmission(conf); err != nil {
		return nil, err
	}
	s.control(aggregate.Controller())
	applyServerDefaults(&s.cfg, set, conf)
	if cfg.PriorityAndFairness {
		s.enablePriorityAndFairness(conf)
	}
	s.advertised = conf.PublicAddress
	conf.AddHealthChecks(healthz.NamedCheck("etcd", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), etcdHealthTimeout)
		defer cancel()
		return cfg.Store.Health(ctx)
	}))
	conf.AddReadyzChecks(healthz.NamedCheck("auth", s.auth.ReadyCheck),
		healthz.NamedCheck("store-room", func(*http.Request) error { return cfg.Store.HasRoom() }))
	if err := cfg.Options.audit(conf); err != nil {
		return nil, err
	}
	if err := s.encrypt(conf); err != nil {
		return nil, err
	}
	all := kinds.All()
	s.backend = newBackend(set, s.cfg.Store, all, s.encryption)
	// All servers fill one list of what there is.
	conf.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	outer := *conf // completing changes it
	custom, err := s.customResources(conf)
	if err != nil {
		s.backend.close()
		return nil, err
	}
	s.generic, err = conf.Complete(s.shared).New("berth", custom.GenericAPIServer)
	if err != nil {
		custom.GenericAPIServer.Destroy()
		s.backend.close()
		return nil, fmt.Errorf("making server: %w", err)
	}
	s.generic.RegisterDestroyFunc(s.backend.close)
	s.customSynced = custom.GenericAPIServer.MuxAndDiscoveryCompleteSignals()["CRDInformerHasNotSynced"]
	if err := s.installHandlers(set, all, outer, custom); err != nil {
		s.generic.Destroy()
		return nil, err
	}
	return s, nil
}

// installHandlers adds the API groups, metrics, discovery documents and hooks to the
// empty server, and puts the aggregation front before it.
func (s *Server) installHandlers(set *scheme.Set, all []registry.Resource, outer genericapiserver.Config,
	custom *customserver.CustomResourceDefinitions) error {
	groups, err := s.install(set, all)
	if err != nil {
		return err
	}
	yielding, err := s.installMetrics()
	if err != nil {
		return err
	}
	issuerDiscovery(s.generic.Handler.GoRestfulContainer, s.auth.Discovery.Handlers())
	s.front, err = aggregation.New(aggregation.Config{
		Generic: outer, Behind: s.generic, Storage: registrationOptions(s.backend), Informers: s.shared,
		Definitions: custom.Informers.Apiextensions().V1().CustomResourceDefinitions(),
		CertFile:    s.cfg.PKI.FrontProxyCert, KeyFile: s.cfg.PKI.FrontProxyKey,
		Groups:   append(groups, aggregation.Group{Name: apiextensionsv1.GroupName, Versions: []string{"v1"}}),
		Yielding: yielding,
		Log:      s.cfg.Log,
	})
	if err != nil {
		return err
	}
	serveOpenAPI(s.front, &outer, s.generic, custom.GenericAPIServer)
	return s.addHooks()
}

// addHooks registers what runs once the server listens.
func (s *Server) addHooks() error {
	if err := s.front.AddPostStartHook("bootstrap", func(ctx genericapiserver.PostStartHookContext) error {
		// An error returned here would end the process; a store that is slow to
		// come is no reason for that.
		if !s.bootstrapUntilDone(ctx) {
			return nil
		}
		select {
		case <-s.front.Listed():
			// /readyz also waits for this very hook to return.
			go s.closeReadyWhenServing(ctx)
		case <-ctx.Done():
			return nil
		}
		go s.reconcileBootstrapObjects(ctx)
		for _, task := range s.background {
			go s.runTask(ctx, task)
		}
		s.finish(stepServiceRepair)
		return nil
	}); err != nil {
		return fmt.Errorf("adding bootstrap hook: %w", err)
	}
	return s.addSteps()
}

// closeReadyWhenServing closes ready once /readyz answers 200, so that a caller
// that waits for Ready is not refused by its first request.
func (s *Server) closeReadyWhenServing(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err == nil {
			close(s.ready)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// task is work beside the serving of requests; it ends with the context.
type task struct {
	name string
	run  func(context.Context) error
}

// runTask logs how a task ends; none of them is worth ending the server.
func (s *Server) runTask(ctx context.Context, t task) {
	if err := t.run(ctx); err != nil && ctx.Err() == nil {
		s.cfg.Log.Error(t.name, "err", err)
	}
}

// Run serves until ctx ends, then lets requests in flight finish.
func (s *Server) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		<-ctx.Done()
		// The library ends the process when a hook fails, and one that waits for
		// custom resources fails when it is interrupted. So it is not.
		select {
		case <-s.customSynced:
		case <-serving.Done():
		case <-time.After(customSyncTimeout):
		}
		stop()
	}()
	prepared := s.front.PrepareRun()
	for _, config := range s.openAPI {
		// The models for server-side apply are made from the definitions by now;
		// anyone who asks for documents gets new ones made.
		config.Definitions = nil
	}
	s.awaitCaches(serving)
	if err := prepared.RunWithContext(serving); err != nil {
		return fmt.Errorf("serving the API: %w", err)
	}
	return nil
}

// awaitCaches waits until the watch caches have read what is stored. A watch
// that comes before is refused and comes again only after a second; our own
// informers would be the first. The library tells of readiness only when asked.
func (s *Server) awaitCaches(ctx context.Context) {
	deadline := time.Now().Add(cacheTimeout)
	for _, cached := range s.caches {
		for cached.ReadinessCheck() != nil && ctx.Err() == nil && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
}

// Ready is closed once the server answers requests and the objects every
// cluster starts with exist.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// LoopbackConfig is a client configuration with every right, for parts of this
// process. It works once Run serves.
func (s *Server) LoopbackConfig() *restclient.Config {
	return restclient.CopyConfig(s.front.LoopbackClientConfig)
}

// As is LoopbackConfig for a part of this process that acts as a user, with the
// rights of that user.
func (s *Server) As(name string, groups ...string) *restclient.Config {
	cfg := s.LoopbackConfig()
	cfg.BearerToken = s.auth.Insider(name, groups...)
	return cfg
}

// control runs a controller beside the serving of requests, as its own account.
func (s *Server) control(c controller.Controller) {
	s.background = append(s.background, task{"running the " + c.Name, func(ctx context.Context) error {
		return c.Start(controller.Env{Client: s.client, Informers: s.shared, Log: s.cfg.Log}, controller.Acting(s.As))(ctx)
	}})
}

// ServeUI serves the status page, behind authentication and authorization as any
// path is. It is not in the list of paths.
func (s *Server) ServeUI(page http.Handler) {
	s.front.Handler.NonGoRestfulMux.UnlistedHandlePrefix(ui.Prefix, page)
	s.front.Handler.NonGoRestfulMux.UnlistedHandle(strings.TrimSuffix(ui.Prefix, "/"), http.RedirectHandler(ui.Prefix, http.StatusSeeOther))
}

// Auth is who answers for identities, for parts that hand out tokens.
func (s *Server) Auth() *auth.Auth { return s.auth }

// Address is where the server listens.
func (s *Server) Address() net.Addr { return s.front.SecureServingInfo.Listener.Addr() }

func (s *Server) port() int32 {
	if tcp, ok := s.Address().(*net.TCPAddr); ok {
		return int32(tcp.Port)
	}
	return int32(s.cfg.Port)
}
