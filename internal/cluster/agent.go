package cluster

import (
	"context"
	"crypto/tls"
	_ "embed" // machine.yaml
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/reach"
	"github.com/berth-dev/berth/internal/agent/serve"
)

//go:embed machine.yaml
var machineYAML []byte

// KubernetesVersion is the API version the parts speak; it follows the
// k8s.io modules.
const KubernetesVersion = "v1.37.2+berth"

// agentPart is the node agent as a part: with certificates of this machine's
// own authority, or as any agent that joined a cluster.
func (u *up) agentPart(log *slog.Logger) (func(context.Context) error, error) {
	if u.Role.control() {
		cfg, err := u.agentConfig(log)
		return func(ctx context.Context) error { return agent.Run(ctx, cfg) }, err
	}
	effective, err := u.kubelet()
	if err != nil {
		return nil, err
	}
	if err := u.agentDirs(); err != nil {
		return nil, err
	}
	k := effective.Kubelet
	k.RotateCertificates, k.ServerTLSBootstrap = true, true
	k.ContainerRuntimeEndpoint = u.runtimeEndpoint()
	effective.Agent = config.Agent{
		Kubeconfig: u.files.AgentKubeconfig, CertDir: u.Path("pki"), RootDir: u.Path("agent"),
		HostnameOverride: u.NodeName, NodeIP: u.NodeIP, MaxDeadPerContainer: 1, MaxDeadContainers: -1,
		ImageCredentialConfig: u.CredentialProviders, ImageCredentialDir: u.CredentialProviderDir,
	}
	cni, err := u.cni()
	if err != nil {
		return nil, err
	}
	cfg := launch.Config{
		Effective: effective, Log: log, Version: KubernetesVersion, Journal: u.journal, Metrics: newRegistry(), CNIConfDir: u.cniConfDir(), CNI: cni,
		Guard: u.guard(),
	}
	return func(ctx context.Context) error { return launch.Run(ctx, cfg) }, nil
}

func (u *up) runtimeEndpoint() string {
	if u.runtime != nil {
		return "unix://" + u.runtime.Socket()
	}
	return u.RuntimeEndpoint
}

// guard has a pod's port bound to its addresses and its network policies hold
// before its containers start.
func (u *up) guard() agent.GuardFunc {
	return func(ctx context.Context, pod *v1.Pod, ips []string) error {
		if u.ports != nil {
			if err := u.ports.Guard(ctx, pod, ips); err != nil {
				return err
			}
		}
		if u.policy != nil {
			return u.policy.Guard(ctx, pod, ips)
		}
		return nil
	}
}

func (u *up) agentDirs() error {
	for _, d := range []string{u.Path("agent", "manifests"), u.Path("agent", "cni")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("making the agent's directories: %w", err)
		}
	}
	return nil
}

// agentConfig makes the node agent's configuration from the cluster's.
func (u *up) agentConfig(log *slog.Logger) (agent.Config, error) {
	registry := newRegistry()
	requests, err := reach.NewRESTMetrics(registry)
	if err != nil {
		return agent.Config{}, fmt.Errorf("registering the metrics of the agent's client: %w", err)
	}
	client, leases, err := u.agentClients(requests)
	if err != nil {
		return agent.Config{}, err
	}
	own, err := tls.LoadX509KeyPair(u.files.Agent.Cert, u.files.Agent.Key)
	if err != nil {
		return agent.Config{}, fmt.Errorf("loading the agent's client certificate: %w", err)
	}
	serving, err := tls.LoadX509KeyPair(u.files.AgentServing.Cert, u.files.AgentServing.Key)
	if err != nil {
		return agent.Config{}, fmt.Errorf("loading the agent's serving certificate: %w", err)
	}
	if err := u.agentDirs(); err != nil {
		return agent.Config{}, err
	}
	ip, err := netip.ParseAddr(u.NodeIP)
	if err != nil {
		return agent.Config{}, fmt.Errorf("--node-ip %q: %w", u.NodeIP, err)
	}
	effective, err := u.kubelet()
	if err != nil {
		return agent.Config{}, err
	}
	kubelet := effective.Kubelet
	settings, err := node.SettingsFor(kubelet, node.Identity{Name: u.NodeName, NodeIPs: []netip.Addr{ip}, AttachDetach: true}, KubernetesVersion)
	if err != nil {
		return agent.Config{}, err
	}
	cni, err := u.cni()
	if err != nil {
		return agent.Config{}, err
	}
	cfg := agent.Config{
		NodeName: u.NodeName, Client: client, Leases: leases.CoordinationV1(),
		RuntimeEndpoint: u.runtimeEndpoint(), RootDir: u.Path("agent"), PodLogsDir: u.Path("logs", "pods"), Kubelet: kubelet,
		Node:     settings,
		Register: true, NodeIPs: []string{u.NodeIP},
		CNIConfDir:          u.cniConfDir(),
		CNI:                 cni,
		Guard:               u.guard(),
		CredentialProviders: u.CredentialProviders, CredentialProviderDir: u.CredentialProviderDir,
		TLS:               &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }},
		ClientCertificate: func() *tls.Certificate { return &own },
		Log:               log, Journal: u.journal,
	}
	cfg.Metrics, cfg.Serve = registry, serve.Config{Gather: registry}
	return cfg, nil
}

// agentClients are two clients of the node's own identity, so that the Node
// authorizer judges it here as anywhere: one for everything, one for the
// heartbeat alone. Their requests count in metrics, if there are any.
func (u *up) agentClients(metrics *reach.RESTMetrics) (all, leases kubernetes.Interface, err error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", u.files.AgentKubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the agent's kubeconfig: %w", err)
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.UserAgent = "berth-agent"
	if metrics != nil {
		cfg.Wrap(metrics.Wrap)
	}
	if all, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, nil, fmt.Errorf("making the agent's client: %w", err)
	}
	// Another user agent is another connection pool entry.
	beat := rest.CopyConfig(cfg)
	beat.UserAgent = "berth-heartbeat"
	beat.Timeout = 10 * time.Second
	if leases, err = kubernetes.NewForConfig(beat); err != nil {
		return nil, nil, fmt.Errorf("making the agent's heartbeat client: %w", err)
	}
	return all, leases, nil
}

// kubelet is the agent's KubeletConfiguration in a `berth up` cluster: the
// defaults for such a machine, the user's file over them, and what follows from
// the cluster's own settings.
func (u *up) kubelet() (*config.Effective, error) {
	effective, err := config.Over(machineYAML, u.AgentConfig)
	if err != nil {
		return nil, fmt.Errorf("reading the agent's configuration: %w", err)
	}
	k := effective.Kubelet
	k.Port = int32(u.Ports.Agent)
	k.HealthzPort = ptr.To(int32(u.Ports.AgentHealthz))
	k.StaticPodPath = u.Path("agent", "manifests")
	k.PodLogsDir = u.Path("logs", "pods")
	k.Authentication.X509.ClientCAFile = u.files.CA.Cert
	k.CgroupRoot = u.CgroupRoot()
	if u.systemdCgroups(u.facts) {
		k.CgroupDriver = "systemd"
	}
	k.ClusterDomain = u.ClusterDomain
	dnsIP, err := u.dnsIP()
	if err != nil {
		return nil, err
	}
	k.ClusterDNS = []string{dnsIP.String()}
	return effective, nil
}
