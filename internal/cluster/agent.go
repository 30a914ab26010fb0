package cluster

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/cluster/host"
)

// KubernetesVersion is the API version the parts speak; it follows the
// k8s.io modules.
const KubernetesVersion = "v1.37.2+berth"

// agentConfig makes the node agent's configuration from the cluster's.
func (u *up) agentConfig(log *slog.Logger) (agent.Config, error) {
	client, leases, err := u.agentClients()
	if err != nil {
		return agent.Config{}, err
	}
	serving, err := tls.LoadX509KeyPair(u.files.AgentServing.Cert, u.files.AgentServing.Key)
	if err != nil {
		return agent.Config{}, fmt.Errorf("loading the agent's serving certificate: %w", err)
	}
	endpoint := u.RuntimeEndpoint
	if u.runtime != nil {
		endpoint = "unix://" + u.runtime.Socket()
	}
	for _, d := range []string{u.Path("agent", "manifests"), u.Path("agent", "cni")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return agent.Config{}, fmt.Errorf("making the agent's directories: %w", err)
		}
	}
	ip, err := netip.ParseAddr(u.NodeIP)
	if err != nil {
		return agent.Config{}, fmt.Errorf("--node-ip %q: %w", u.NodeIP, err)
	}
	kubelet := u.kubelet()
	cfg := agent.Config{
		NodeName: u.NodeName, Client: client, Leases: leases.CoordinationV1(),
		RuntimeEndpoint: endpoint, RootDir: u.Path("agent"), PodLogsDir: u.Path("logs", "pods"), Kubelet: kubelet,
		Node: node.Settings{
			Identity: node.Identity{Name: u.NodeName, NodeIPs: []netip.Addr{ip}, AttachDetach: true,
				Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
			Limits: node.Limits{MaxPods: int64(kubelet.MaxPods)},
			Port:   kubelet.Port, Version: KubernetesVersion, MaxImages: 50,
		},
		Register: true, NodeIPs: []string{u.NodeIP},
		CNIConfDir: u.Layout().CNIConfDir(),
		CNI:        network.CNIOptions{Name: u.Instance(), Bridge: u.Bridge(), DataDir: u.Path("agent", "cni-leases"), Masquerade: true},
		TLS:        &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }},
		Log:        log, Journal: u.journal,
	}
	return cfg, nil
}

// agentClients are two clients of the node's own identity, so that the Node
// authorizer judges it here as anywhere: one for everything, one for the
// heartbeat alone.
func (u *up) agentClients() (all, leases kubernetes.Interface, err error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", u.files.AgentKubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the agent's kubeconfig: %w", err)
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.UserAgent = "berth-agent"
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

// kubelet is the agent's KubeletConfiguration in a `berth up` cluster.
func (u *up) kubelet() *kubeletv1beta1.KubeletConfiguration {
	driver := "cgroupfs"
	if u.systemdCgroups(u.facts) {
		driver = "systemd"
	}
	return &kubeletv1beta1.KubeletConfiguration{
		EnableServer: ptr.To(true), Address: "0.0.0.0", Port: int32(u.Ports.Agent),
		HealthzPort: ptr.To(int32(u.Ports.AgentHealthz)), HealthzBindAddress: "127.0.0.1",
		SyncFrequency: metav1.Duration{Duration: time.Minute}, FileCheckFrequency: metav1.Duration{Duration: 20 * time.Second}, HTTPCheckFrequency: metav1.Duration{Duration: 20 * time.Second},
		StaticPodPath: u.Path("agent", "manifests"),
		Authentication: kubeletv1beta1.KubeletAuthentication{
			X509:      kubeletv1beta1.KubeletX509Authentication{ClientCAFile: u.files.CA.Cert},
			Webhook:   kubeletv1beta1.KubeletWebhookAuthentication{Enabled: ptr.To(true), CacheTTL: metav1.Duration{Duration: 2 * time.Minute}},
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
		},
		Authorization: kubeletv1beta1.KubeletAuthorization{Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook,
			Webhook: kubeletv1beta1.KubeletWebhookAuthorization{CacheAuthorizedTTL: metav1.Duration{Duration: 5 * time.Minute}, CacheUnauthorizedTTL: metav1.Duration{Duration: 30 * time.Second}}},
		RegistryPullQPS: ptr.To(int32(5)), RegistryBurst: 10, EventRecordQPS: ptr.To(int32(50)), EventBurst: 100,
		EnableDebuggingHandlers: ptr.To(true), EnableProfilingHandler: ptr.To(true), EnableSystemLogHandler: ptr.To(true), EnableDebugFlagsHandler: ptr.To(true),
		StreamingConnectionIdleTimeout: metav1.Duration{Duration: 4 * time.Hour},
		NodeStatusUpdateFrequency:      metav1.Duration{Duration: 10 * time.Second}, NodeStatusReportFrequency: metav1.Duration{Duration: 5 * time.Minute}, NodeLeaseDurationSeconds: 40,
		ImageMinimumGCAge: metav1.Duration{Duration: 2 * time.Minute}, ImageGCHighThresholdPercent: ptr.To(int32(85)), ImageGCLowThresholdPercent: ptr.To(int32(80)),
		CgroupRoot: u.CgroupRoot(), CgroupsPerQOS: ptr.To(true), CgroupDriver: driver, EnforceNodeAllocatable: []string{"pods"},
		CPUManagerPolicy: "none", MemoryManagerPolicy: "None", TopologyManagerPolicy: "none", TopologyManagerScope: "container",
		RuntimeRequestTimeout: metav1.Duration{Duration: 2 * time.Minute}, MaxPods: 110, PodPidsLimit: ptr.To(int64(-1)),
		ResolverConfig: ptr.To("/etc/resolv.conf"), CPUCFSQuota: ptr.To(true), CPUCFSQuotaPeriod: &metav1.Duration{Duration: 100 * time.Millisecond},
		NodeStatusMaxImages: ptr.To(int32(50)), MaxOpenFiles: 1000000, SerializeImagePulls: ptr.To(false), MaxParallelImagePulls: ptr.To(int32(4)),
		EvictionPressureTransitionPeriod: metav1.Duration{Duration: 5 * time.Minute}, EnableControllerAttachDetach: ptr.To(true),
		ContainerLogMaxSize: "10Mi", ContainerLogMaxFiles: ptr.To(int32(5)), ContainerLogMaxWorkers: ptr.To(int32(1)), ContainerLogMonitorInterval: &metav1.Duration{Duration: 10 * time.Second},
		ConfigMapAndSecretChangeDetectionStrategy: kubeletv1beta1.WatchChangeDetectionStrategy,
		PodLogsDir: u.Path("logs", "pods"), LocalStorageCapacityIsolation: ptr.To(true), RegisterNode: ptr.To(true),
		ClusterDomain: u.ClusterDomain, FailSwapOn: ptr.To(false), FailCgroupV1: ptr.To(u.facts.Cgroups == host.CgroupV2),
		ContainerRuntimeEndpoint: u.RuntimeEndpoint,
	}
}
