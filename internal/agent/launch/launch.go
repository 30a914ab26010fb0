// Package launch turns a configuration into a running agent: it prepares the
// machine, gets credentials, and starts the agent with them.
package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_* metrics

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/certs"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/reach"
	"github.com/berth-dev/berth/internal/journal"
)

// Config is what launching needs beside the agent's configuration.
type Config struct {
	Effective *config.Effective
	Log       *slog.Logger
	LogLevel  *slog.LevelVar
	// Version is the Kubernetes version the agent speaks.
	Version string
	Journal journal.Sink
	// Metrics are the agent's; nil makes a registry.
	Metrics Registry
	// CNIConfDir and CNI are for an agent that makes its pod network itself;
	// empty leaves that to others.
	CNIConfDir string
	CNI        network.CNIOptions
	// Guard is the agent's.
	Guard agent.GuardFunc
}

// Registry is where metrics are registered and gathered.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Run runs the agent until the context ends.
func Run(ctx context.Context, cfg Config) error {
	k, flags := cfg.Effective.Kubelet, &cfg.Effective.Agent
	for _, note := range cfg.Effective.Notes {
		cfg.Log.Info(note)
	}
	id, err := identity(cfg)
	if err != nil {
		return err
	}
	settings, err := node.SettingsFor(k, id, cfg.Version)
	if err != nil {
		return err
	}
	unlock, contended, err := lock(flags.LockFile, flags.ExitOnLockContention)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if contended != nil {
		go func() {
			select {
			case <-contended:
				cancel(fmt.Errorf("somebody else wants %s", flags.LockFile))
			case <-ctx.Done():
			}
		}()
	}
	if err := prepare(k, cfg.Log, "/"); err != nil {
		return err
	}
	registry := cfg.Metrics
	if registry == nil {
		registry = prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	out := agent.Config{
		NodeName: id.Name, RuntimeEndpoint: k.ContainerRuntimeEndpoint, ImageEndpoint: k.ImageServiceEndpoint, RootDir: flags.RootDir, PodLogsDir: k.PodLogsDir,
		LogLinkDir: "/var/log/containers", Kubelet: k, Node: settings, Register: k.RegisterNode == nil || *k.RegisterNode,
		CredentialProviders: flags.ImageCredentialConfig, CredentialProviderDir: flags.ImageCredentialDir,
		RuntimeCgroup: flags.RuntimeCgroups, DeadContainers: &pressure.ContainerLimits{
			MinimumAge: flags.MinimumContainerTTL, PerContainer: int(flags.MaxDeadPerContainer), Total: int(flags.MaxDeadContainers),
		},
		CNIConfDir: cfg.CNIConfDir, CNI: cfg.CNI, Guard: cfg.Guard, AppArmor: appArmor("/"), Log: cfg.Log, Metrics: registry, Journal: cfg.Journal,
	}
	out.Serve.Gather = prometheus.Gatherers{registry, legacyregistry.DefaultGatherer}
	out.Serve.LogLevel, out.Serve.Flags = cfg.LogLevel, cfg.Effective.Flags
	l := &launcher{cfg: cfg, id: id}
	if err := l.credentials(ctx, &out); err != nil {
		return err
	}
	return l.run(ctx, out)
}

// identity is who this node is, from the flags.
func identity(cfg Config) (node.Identity, error) {
	k, flags := cfg.Effective.Kubelet, &cfg.Effective.Agent
	hostname, err := os.Hostname()
	if err != nil {
		return node.Identity{}, fmt.Errorf("reading the host name: %w", err)
	}
	id := node.Identity{Taints: k.RegisterWithTaints, ProviderID: k.ProviderID, AttachDetach: k.EnableControllerAttachDetach == nil || *k.EnableControllerAttachDetach}
	if id.Name, err = node.Name(hostname, flags.HostnameOverride); err != nil {
		return id, err
	}
	if id.Labels, err = node.ParseLabels(flags.NodeLabels); err != nil {
		return id, err
	}
	var skipped []string
	if id.NodeIPs, skipped, err = node.ParseNodeIPs(flags.NodeIP); err != nil {
		return id, err
	}
	if len(skipped) > 0 {
		cfg.Log.Warn("--node-ip has entries that are no addresses", "entries", skipped)
	}
	switch flags.CloudProvider {
	case "":
	case "external":
		id.ExternalCloud = true
	default:
		return id, fmt.Errorf("reading --cloud-provider: %q is not supported; allowed are \"\" and external", flags.CloudProvider)
	}
	return id, nil
}

// launcher holds what runs beside the agent.
type launcher struct {
	cfg   Config
	id    node.Identity
	parts []func(context.Context) error
	// addresses are the node's, for its serving certificate.
	addresses atomic.Pointer[[]v1.NodeAddress]
}

// credentials connects to the API server, if there is one, and sets up TLS.
func (l *launcher) credentials(ctx context.Context, out *agent.Config) error {
	k, flags := l.cfg.Effective.Kubelet, &l.cfg.Effective.Agent
	if flags.Kubeconfig != "" {
		if err := l.connect(ctx, out); err != nil {
			return err
		}
	} else {
		l.cfg.Log.Info("no --kubeconfig: running static pods alone")
	}
	if k.EnableServer != nil && !*k.EnableServer {
		return nil
	}
	if out.Client == nil {
		l.cfg.Log.Warn("without an API server nobody can be authenticated: the agent's API is not served")
		return nil
	}
	failures, err := failureCounter(out.Metrics, "kubelet_server_expiration_renew_errors", "Requests for a serving certificate that failed.")
	if err != nil {
		return err
	}
	serving, err := certs.NewServing(certs.ServingConfig{Failures: failures, Log: l.cfg.Log, NodeName: l.id.Name, CertDir: flags.CertDir, Kubelet: k, Client: out.Client,
		Addresses: func() []v1.NodeAddress {
			if known := l.addresses.Load(); known != nil {
				return *known
			}
			return nil
		}})
	if err != nil {
		return err
	}
	out.TLS = serving.TLS
	out.OnNode = func(n *v1.Node) { l.addresses.Store(&n.Status.Addresses) }
	l.parts = append(l.parts, serving.Run)
	return nil
}

func (l *launcher) connect(ctx context.Context, out *agent.Config) error {
	k, flags := l.cfg.Effective.Kubelet, &l.cfg.Effective.Agent
	err := certs.Bootstrap(ctx, certs.BootstrapConfig{Log: l.cfg.Log, NodeName: l.id.Name, Kubeconfig: flags.Kubeconfig, Bootstrap: flags.BootstrapKubeconfig, CertDir: flags.CertDir})
	if err != nil {
		return err
	}
	base, err := clientcmd.BuildConfigFromFlags("", flags.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading --kubeconfig %s: %w: it must name a server, its certificate-authority and this node's credentials", flags.Kubeconfig, err)
	}
	base.UserAgent = "berth-agent"
	base.ContentType = k.ContentType
	base.AcceptContentTypes = k.ContentType + ",application/json"
	base.QPS = -1 // the agent bounds itself; a limit would delay pods
	requests := reach.NewRequests()
	if err := out.Metrics.Register(requests); err != nil {
		return fmt.Errorf("registering the metric of API requests: %w", err)
	}
	failures, err := failureCounter(out.Metrics, "kubelet_certificate_manager_client_expiration_renew_errors", "Renewals of the client certificate that failed.")
	if err != nil {
		return err
	}
	if pair, err := keyPair(base); err == nil {
		out.ClientCertificate = func() *tls.Certificate { return &pair }
	}
	paths := reach.Config{Log: l.cfg.Log, Base: base, Servers: flags.APIServers, Spread: l.id.Name, Requests: requests}
	var rotation *certs.Rotation
	var rotators []func()
	if k.RotateCertificates && (base.CertFile != "" || len(base.CertData) > 0) {
		var requester atomic.Pointer[kubernetes.Clientset]
		rotation, err = certs.NewRotation(certs.RotationConfig{Log: l.cfg.Log, NodeName: l.id.Name, CertDir: flags.CertDir, Kubeconfig: base, Failures: failures,
			Client: func() (kubernetes.Interface, error) {
				if client := requester.Load(); client != nil {
					return client, nil
				}
				return nil, errors.New("not connected yet")
			},
			Changed: func() {
				for _, rotate := range rotators {
					rotate()
				}
			}})
		if err != nil {
			return err
		}
		paths.Certificate, out.ClientCertificate = rotation.Current, rotation.Current
		defer func() {
			if client, ok := out.Client.(*kubernetes.Clientset); ok {
				requester.Store(client)
			}
		}()
		l.parts = append(l.parts, rotation.Run)
	}
	client := func(paths reach.Config, timeout time.Duration) (*kubernetes.Clientset, error) {
		r, err := reach.New(paths)
		if err != nil {
			return nil, err
		}
		rotators = append(rotators, r.Rotate)
		l.parts = append(l.parts, r.Run)
		settings := r.Config()
		settings.Timeout = timeout
		advise(settings, paths.Base, paths.Certificate, l.cfg.Log)
		return kubernetes.NewForConfig(settings)
	}
	all, err := client(paths, 0)
	if err != nil {
		return fmt.Errorf("making the agent's client: %w", err)
	}
	// The heartbeat has connections of its own.
	beat := paths
	beat.Base = rest.CopyConfig(base)
	beat.Base.UserAgent = "berth-heartbeat"
	leases, err := client(beat, 10*time.Second)
	if err != nil {
		return fmt.Errorf("making the heartbeat's client: %w", err)
	}
	out.Client, out.Leases = all, leases.CoordinationV1()
	return nil
}

func failureCounter(registry prometheus.Registerer, name, help string) (prometheus.Counter, error) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	if err := registry.Register(c); err != nil {
		return nil, fmt.Errorf("registering %s: %w", name, err)
	}
	return c, nil
}

// run runs the agent and what it depends on; the first to fail ends all.
func (l *launcher) run(ctx context.Context, out agent.Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, part := range append(l.parts, func(ctx context.Context) error { return agent.Run(ctx, out) }) {
		wg.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return certs.Explain(cause)
	}
	return nil
}

func appArmor(root string) bool {
	text, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(text), "Y")
}
