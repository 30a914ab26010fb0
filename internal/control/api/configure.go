package api

import (
	"fmt"
	"net"
	"net/http"

	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/internal/control/admit"
	"github.com/berth-dev/berth/internal/control/api/certificates"
	"github.com/berth-dev/berth/internal/control/api/scheme"
	"github.com/berth-dev/berth/internal/control/auth"
	"github.com/berth-dev/berth/internal/ui"
)

// configureAuth sets the authenticator, the authorizer and the client CAs.
func (s *Server) configureAuth(conf *genericapiserver.Config) error {
	pki := s.cfg.PKI
	var err error
	s.auth, err = auth.New(auth.Config{
		ClientCAFile:        pki.ClientCA,
		RequestHeaderCAFile: pki.FrontProxyCA,
		SASigningKeyFile:    pki.ServiceAccountKey,
		SAPublicKeyFiles:    pki.ServiceAccountPublicKeys,
		Issuer:              pki.ServiceAccountIssuer,
		ResourceSlices:      true,
		Informers:           s.shared,
		Client:              s.client,
		Options:             s.cfg.Options.Auth,
		Life:                s.life,
		Log:                 s.cfg.Log,
	})
	if err != nil {
		return err
	}
	conf.SecureServing.ClientCA = s.auth.ClientCA // the listener follows the files
	conf.Authentication.Authenticator = s.auth.Authenticator
	conf.Authentication.APIAudiences = []string{pki.ServiceAccountIssuer}
	conf.Authorization.Authorizer = s.auth.Authorizer
	conf.RuleResolver = s.auth.RuleResolver
	return nil
}

// configureAdmission sets the admission plugins.
func (s *Server) configureAdmission(conf *genericapiserver.Config) error {
	dynamicClient, err := dynamic.NewForConfig(conf.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("making dynamic loopback client: %w", err)
	}
	chain, err := admit.New(admit.Config{
		Client:     s.client,
		Informers:  s.shared,
		Dynamic:    dynamicClient,
		RESTMapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery())),
		Authorizer: s.auth.Authorizer,
		Roles:      s.auth.RBAC,
		Drained:    conf.DrainedNotify(),
		ServerID:   conf.APIServerID,
		Services:   s.serviceResolver(),
		WebhookAuth: s.webhookAuth(webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
			conf.LoopbackClientConfig, nooptrace.NewTracerProvider())),
		Enable: s.cfg.Options.Admission.EnablePlugins, Disable: s.cfg.Options.Admission.DisablePlugins,
		ConfigFile: s.cfg.Options.Admission.ConfigFile,
	})
	conf.AdmissionControl = audited{chain}
	return err
}

// applyServerDefaults sets the rest of the library's configuration: version,
// address, long-running requests, handler chain and shutdown.
func applyServerDefaults(cfg *Config, set *scheme.Set, conf *genericapiserver.Config) {
	conf.EffectiveVersion = effectiveVersion()
	conf.PublicAddress = advertised(cfg, conf.SecureServing.Listener)
	longRunning := filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	conf.LongRunningFunc = func(r *http.Request, info *apirequest.RequestInfo) bool {
		return longRunning(r, info) || !info.IsResourceRequest && info.Path == ui.LivePath
	}
	describe(conf, set.Scheme)
	conf.Flagz = flagsOf(cfg)
	conf.SkipOpenAPIInstallation = true // see serveOpenAPI
	conf.EnableProfiling = false
	conf.BuildHandlerChainFunc = func(next http.Handler, c *genericapiserver.Config) http.Handler {
		return certificates.WithSource(genericapiserver.DefaultBuildHandlerChain(metadataOnly(set, next), c))
	}
	// Counting stored objects would poll etcd; nothing here needs the counts.
	conf.StorageObjectCountTracker = nil
	// On shutdown watches are told to end instead of being waited for: clients
	// resume them after the restart.
	conf.ShutdownWatchTerminationGracePeriod = watchDrain
}

// advertised is the address other members are told.
func advertised(cfg *Config, listener net.Listener) net.IP {
	if cfg.AdvertiseAddress != nil {
		return cfg.AdvertiseAddress
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && tcp.IP.IsGlobalUnicast() {
		return tcp.IP
	}
	if ip := hostAddress(); ip != nil {
		return ip
	}
	return net.IPv4(127, 0, 0, 1)
}

// hostAddress is the first global unicast address of the host, or nil.
func hostAddress() net.IP {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if ipnet, ok := a.(*net.IPNet); ok && ipnet.IP.IsGlobalUnicast() {
			return ipnet.IP
		}
	}
	return nil
}
