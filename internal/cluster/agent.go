package cluster

import (
	"context"
	_ "embed" // host.yaml
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/kube"
)

//go:embed host.yaml
var hostYAML []byte

// configureAgent settles how the agent is launched.
func (u *up) configureAgent(context.Context) (err error) {
	if err := u.agentDirs(); err != nil {
		return err
	}
	log, err := u.logs.part("agent")
	if err != nil {
		return err
	}
	u.agent, err = u.agentConfig(log)
	return err
}

// requestsServing says whether the agent's API waits for a certificate that
// the cluster issues.
func (u *up) requestsServing() bool {
	k := u.agent.Effective.Kubelet
	return k.ServerTLSBootstrap && k.TLSCertFile == "" && ptr.Deref(k.EnableServer, true)
}

// agentConfig is how the agent is launched. A node beside its control plane
// has certificates of the host's own CA, which the cluster renews; one
// that joined asks for its own and renews them itself.
func (u *up) agentConfig(log *slog.Logger) (launch.Config, error) {
	effective, err := u.kubelet()
	if err != nil {
		return launch.Config{}, err
	}
	cni, err := u.cni()
	if err != nil {
		return launch.Config{}, err
	}
	effective.Kubelet.ContainerRuntimeEndpoint = u.runtimeEndpoint()
	effective.Agent = config.Agent{
		Kubeconfig: u.files.AgentKubeconfig, CertDir: u.Path("pki"), RootDir: u.Path("agent"),
		HostnameOverride: u.NodeName, NodeIP: u.NodeIP, MaxDeadPerContainer: 1, MaxDeadContainers: -1,
		ImageCredentialConfig: u.CredentialProviders, ImageCredentialDir: u.CredentialProviderDir,
	}
	cfg := launch.Config{
		Effective: effective, Log: log, Version: kube.Version, Journal: u.journal, Metrics: newRegistry(),
		Network: agent.PodNetwork{ConfDir: u.cniConfDir(), CNI: cni}, Guard: u.guard(), Images: u.imageAPI(),
	}
	if ptr.Deref(u.Hardened, false) {
		cfg.DropCapabilities = container.RuntimeExtras
	}
	if u.volumes != nil {
		cfg.LocalVolumes = u.volumes
	}
	if u.Role.control() {
		cfg.BesideServer = true
		cfg.Files = launch.Files{
			ClientCert: u.files.Agent.Cert, ClientKey: u.files.Agent.Key,
			ServingCert: u.files.AgentServing.Cert, ServingKey: u.files.AgentServing.Key,
		}
		return cfg, nil
	}
	cfg.LogLinkDir = launch.HostLogLinks
	effective.Kubelet.RotateCertificates, effective.Kubelet.ServerTLSBootstrap = true, true
	return cfg, nil
}

// noSeccomp says why containers cannot have the runtime's seccomp profile;
// empty where they can, as far as can be told of a runtime of the user's own.
func (u *up) noSeccomp() string {
	if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		return "this kernel has no seccomp (CONFIG_SECCOMP_FILTER)"
	}
	return u.runtimeLacks
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

// nodeClient is what the parts of a node use that write to its Node: it has the
// node's own identity, also beside the control plane.
func (u *up) nodeClient() (kubernetes.Interface, error) {
	if !u.Role.control() {
		return u.client, nil
	}
	return u.clientAs("system:node:"+u.NodeName, user.NodesGroup)
}

// clientAs acts as a user, with the connections of the control plane.
func (u *up) clientAs(name string, groups ...string) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(u.api.As(name, append(groups, user.AllAuthenticated)...))
	if err != nil {
		return nil, fmt.Errorf("making a client that acts as %s: %w", name, err)
	}
	return client, nil
}

// memberClient is what the parts of a joined node use beside the agent: it has
// the node's own identity, so that the Node authorizer judges it as any.
func (u *up) memberClient() (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", u.files.AgentKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the agent's kubeconfig: %w", err)
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.UserAgent = "berth-agent"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making the node's client: %w", err)
	}
	return client, nil
}

// kubelet is the agent's KubeletConfiguration in a `berth up` cluster: the
// defaults for such a host, the user's file over them, and what follows from
// the cluster's own settings.
func (u *up) kubelet() (*config.Effective, error) {
	effective, err := config.Over(hostYAML, u.AgentConfig)
	if err != nil {
		return nil, fmt.Errorf("reading the agent's configuration: %w", err)
	}
	k := effective.Kubelet
	if why := u.noSeccomp(); why != "" && ptr.Deref(k.SeccompDefault, false) {
		u.notes = append(u.notes, "containers that name no seccomp profile run without one: "+why)
		k.SeccompDefault = ptr.To(false)
	}
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
