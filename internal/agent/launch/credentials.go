package launch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/certs"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/reach"
)

// credentials connects an agent to its API server and keeps its certificates.
type credentials struct {
	cfg Config
	id  node.Identity
	// parts keep the certificates current and the API server in reach.
	parts []func(context.Context) error
	// rotators make new connections use a new client certificate.
	rotators []func()
	// addresses are the node's, for its serving certificate.
	addresses atomic.Pointer[[]v1.NodeAddress]
}

// fill sets the agent's clients, if there is an API server, and its TLS.
func (c *credentials) fill(ctx context.Context, out *agent.Config) error {
	k, flags := c.cfg.Effective.Kubelet, &c.cfg.Effective.Agent
	if flags.Kubeconfig != "" {
		if err := c.connect(ctx, out); err != nil {
			return err
		}
	} else {
		c.cfg.Log.Info("no --kubeconfig: running static pods alone")
	}
	if k.EnableServer != nil && !*k.EnableServer {
		return nil
	}
	if out.API.Client == nil {
		c.cfg.Log.Warn("without an API server no client can be authenticated: the agent's API is not served")
		return nil
	}
	return c.serving(out)
}

// serving sets up the certificate of the agent's API.
func (c *credentials) serving(out *agent.Config) error {
	failures, err := failureCounter(out.Metrics, "kubelet_server_expiration_renew_errors",
		"Requests for a serving certificate that failed.")
	if err != nil {
		return err
	}
	k := *c.cfg.Effective.Kubelet
	if k.TLSCertFile == "" && !k.ServerTLSBootstrap {
		k.TLSCertFile, k.TLSPrivateKeyFile = c.cfg.Files.ServingCert, c.cfg.Files.ServingKey
	}
	serving, err := certs.NewServing(certs.ServingConfig{
		Failures: failures, Log: c.cfg.Log, NodeName: c.id.Name, CertDir: c.cfg.Effective.Agent.CertDir, Kubelet: &k,
		Client: out.API.Client, Addresses: func() []v1.NodeAddress {
			if known := c.addresses.Load(); known != nil {
				return *known
			}
			return nil
		}})
	if err != nil {
		return err
	}
	out.TLS, out.Serve.Issued = serving.TLS, serving.Issued
	out.OnNode = func(n *v1.Node) { c.addresses.Store(&n.Status.Addresses) }
	c.parts = append(c.parts, serving.Run)
	return nil
}

// connect makes the agent's clients from the kubeconfig.
func (c *credentials) connect(ctx context.Context, out *agent.Config) error {
	k, flags := c.cfg.Effective.Kubelet, &c.cfg.Effective.Agent
	err := certs.Bootstrap(ctx, certs.BootstrapConfig{
		Log: c.cfg.Log, NodeName: c.id.Name, Kubeconfig: flags.Kubeconfig, Bootstrap: flags.BootstrapKubeconfig, CertDir: flags.CertDir,
	})
	if err != nil {
		return err
	}
	base, err := clientcmd.BuildConfigFromFlags("", flags.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading --kubeconfig %s: %w: it must name a server, its certificate-authority and this node's credentials",
			flags.Kubeconfig, err)
	}
	base.UserAgent = "berth-agent"
	base.ContentType = k.ContentType
	base.AcceptContentTypes = k.ContentType + ",application/json"
	base.QPS = -1 // the agent bounds itself; a limit would delay pods
	requests := reach.NewRequests()
	if err := out.Metrics.Register(requests); err != nil {
		return fmt.Errorf("registering the metric of API requests: %w", err)
	}
	if c.cfg.BesideServer {
		own, err := reach.NewRESTMetrics(out.Metrics)
		if err != nil {
			return fmt.Errorf("registering the metrics of the agent's client: %w", err)
		}
		base.Wrap(own.Wrap)
	}
	current, requester, err := c.clientCertificate(base, out.Metrics)
	if err != nil {
		return err
	}
	paths := reach.Config{Log: c.cfg.Log, Base: base, Servers: flags.APIServers, HashKey: c.id.Name, Requests: requests,
		Certificate: current}
	shown := current
	if current == nil {
		if pair, err := keyPair(base); err == nil {
			shown = func() *tls.Certificate { return &pair }
		}
	}
	all, err := c.client(paths, 0)
	if err != nil {
		return fmt.Errorf("making the agent's client: %w", err)
	}
	requester.Store(all)
	// The heartbeat has connections of its own.
	beat := paths
	beat.Base = rest.CopyConfig(base)
	beat.Base.UserAgent = "berth-heartbeat"
	leases, err := c.client(beat, 10*time.Second)
	if err != nil {
		return fmt.Errorf("making the heartbeat's client: %w", err)
	}
	out.API = agent.API{Client: all, Leases: leases.CoordinationV1(), Certificate: shown}
	return nil
}

// clientCertificate says which certificate the clients show where it may
// change: one that is renewed with the API server, or that of files. nil is the
// kubeconfig's. Renewal asks with the client that is stored in requester.
func (c *credentials) clientCertificate(base *rest.Config, metrics prometheus.Registerer) (
	current func() *tls.Certificate, requester *atomic.Pointer[kubernetes.Clientset], err error,
) {
	requester = &atomic.Pointer[kubernetes.Clientset]{}
	failures, err := failureCounter(metrics, "kubelet_certificate_manager_client_expiration_renew_errors",
		"Renewals of the client certificate that failed.")
	if err != nil {
		return nil, nil, err
	}
	changed := func() {
		for _, rotate := range c.rotators {
			rotate()
		}
	}
	if c.cfg.Effective.Kubelet.RotateCertificates && (base.CertFile != "" || len(base.CertData) > 0) {
		rotation, err := certs.NewRotation(certs.RotationConfig{
			Log: c.cfg.Log, NodeName: c.id.Name, CertDir: c.cfg.Effective.Agent.CertDir, Kubeconfig: base, Failures: failures,
			Changed: changed,
			Client: func() (kubernetes.Interface, error) {
				if client := requester.Load(); client != nil {
					return client, nil
				}
				return nil, errors.New("not connected yet")
			}})
		if err != nil {
			return nil, nil, err
		}
		c.parts = append(c.parts, rotation.Run)
		return rotation.Current, requester, nil
	}
	if c.cfg.Files.ClientCert == "" {
		return nil, requester, nil
	}
	pair, err := certs.WatchPair("client", c.cfg.Files.ClientCert, c.cfg.Files.ClientKey, changed)
	if err != nil {
		return nil, nil, err
	}
	c.parts = append(c.parts, pair.Run)
	return pair.Current, requester, nil
}

// client makes a client with connections of its own.
func (c *credentials) client(paths reach.Config, timeout time.Duration) (*kubernetes.Clientset, error) {
	r, err := reach.New(paths)
	if err != nil {
		return nil, err
	}
	c.rotators = append(c.rotators, r.Rotate)
	c.parts = append(c.parts, r.Run)
	settings := r.Config()
	settings.Timeout = timeout
	advise(settings, paths.Base, paths.Certificate, c.cfg.Log)
	return kubernetes.NewForConfig(settings)
}

func failureCounter(registry prometheus.Registerer, name, help string) (prometheus.Counter, error) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	if err := registry.Register(c); err != nil {
		return nil, fmt.Errorf("registering %s: %w", name, err)
	}
	return c, nil
}
