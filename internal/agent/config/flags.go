package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
)

// Agent are the settings that exist as flags only.
type Agent struct {
	ConfigFile, ConfigDir           string
	Kubeconfig, BootstrapKubeconfig string
	// APIServers are further addresses of the API server, tried when the one
	// in the kubeconfig does not answer.
	APIServers       []string
	HostnameOverride string
	NodeIP           string
	NodeLabels       string
	CertDir          string
	RootDir          string
	CloudProvider    string

	ImageCredentialConfig, ImageCredentialDir string
	RuntimeCgroups                            string
	LockFile                                  string
	ExitOnLockContention                      bool
	// Limits of dead containers: the least age to remove one, how many to
	// keep per container, and in all (-1 is no limit).
	MinimumContainerTTL time.Duration
	MaxDeadPerContainer int32
	MaxDeadContainers   int32
	CheckConfig         bool
}

// flags collects what the command line gives.
type flags struct {
	Agent Agent
	set   *pflag.FlagSet
}

// fieldFlag is a flag that sets a field of the file.
type fieldFlag struct {
	name, path, usage string
	parse             func(text string) (any, error)
}

// AddFlags declares the agent's flags in fs; Load reads them after parsing.
func AddFlags(fs *pflag.FlagSet) *flags {
	f := &flags{set: fs}
	a := &f.Agent
	fs.StringVar(&a.ConfigFile, "config", "", "file with a KubeletConfiguration")
	fs.StringVar(&a.ConfigDir, "config-dir", "", "directory of *.conf files laid over --config in order of their names")
	fs.StringVar(&a.Kubeconfig, "kubeconfig", "", "how to reach the API server; without it only static pods run")
	fs.StringVar(&a.BootstrapKubeconfig, "bootstrap-kubeconfig", "",
		"credentials to request a client certificate with if --kubeconfig does not exist yet")
	fs.StringSliceVar(&a.APIServers, "api-servers", nil, "further addresses of the API server, for failover")
	fs.StringVar(&a.HostnameOverride, "hostname-override", "", "the node's name instead of the host name")
	fs.StringVar(&a.NodeIP, "node-ip", "", "the node's address, or two of different families; 0.0.0.0 or :: picks the default route's")
	fs.StringVar(&a.NodeLabels, "node-labels", "", "labels to register with, key=value,...")
	fs.StringVar(&a.CertDir, "cert-dir", "/var/lib/kubelet/pki", "directory of certificates")
	fs.StringVar(&a.RootDir, "root-dir", "/var/lib/kubelet", "directory of volumes and checkpoints")
	fs.StringVar(&a.CloudProvider, "cloud-provider", "", "empty, or external for a cloud controller manager")
	fs.StringVar(&a.ImageCredentialConfig, "image-credential-provider-config", "", "file or directory with a CredentialProviderConfig")
	fs.StringVar(&a.ImageCredentialDir, "image-credential-provider-bin-dir", "", "directory of credential provider plugins")
	fs.StringVar(&a.RuntimeCgroups, "runtime-cgroups", "", "cgroup of the container runtime, shown in stats")
	fs.StringVar(&a.LockFile, "lock-file", "", "file to lock for as long as the agent runs")
	fs.BoolVar(&a.ExitOnLockContention, "exit-on-lock-contention", false, "exit when another process wants --lock-file")
	fs.DurationVar(&a.MinimumContainerTTL, "minimum-container-ttl-duration", 0, "least age of a dead container to remove it")
	fs.Int32Var(&a.MaxDeadPerContainer, "maximum-dead-containers-per-container", 1, "dead instances to keep per container")
	fs.Int32Var(&a.MaxDeadContainers, "maximum-dead-containers", -1, "dead containers to keep in all, -1 for no limit")
	fs.BoolVar(&a.CheckConfig, "check-config", false, "print the effective configuration with its sources and exit")
	for _, flag := range fieldFlags {
		if flag.isBool() {
			fs.Bool(flag.name, false, flag.usage+" (field "+flag.path+")")
		} else {
			fs.String(flag.name, "", flag.usage+" (field "+flag.path+")")
		}
	}
	fs.IntP("v", "v", 0, "log verbosity (field logging.verbosity)")
	return f
}

func (f fieldFlag) isBool() bool {
	_, err := f.parse("true")
	_, number := f.parse("maybe")
	return err == nil && number != nil
}

// fieldFlags are the flags that people use for fields of the file. Flags win
// over files.
var fieldFlags = []fieldFlag{
	{"address", "address", "address to serve on", text},
	{"port", "port", "port of the API", number},
	{"read-only-port", "readOnlyPort", "port without authentication, 0 is off", number},
	{"healthz-port", "healthzPort", "local port of /healthz", number},
	{"healthz-bind-address", "healthzBindAddress", "address of the local /healthz", text},
	{"container-runtime-endpoint", "containerRuntimeEndpoint", "CRI endpoint of the runtime", text},
	{"image-service-endpoint", "imageServiceEndpoint", "CRI endpoint for images", text},
	{"pod-manifest-path", "staticPodPath", "directory or file of static pods", text},
	{"manifest-url", "staticPodURL", "URL of static pods", text},
	{"max-pods", "maxPods", "most pods on the node", number},
	{"pods-per-core", "podsPerCore", "most pods per core, 0 is no limit", number},
	{"pod-max-pids", "podPidsLimit", "most processes per pod, -1 is no limit", number},
	{"fail-swap-on", "failSwapOn", "refuse to start with swap on", boolean},
	{"cgroup-driver", "cgroupDriver", "cgroupfs or systemd", text},
	{"cgroup-root", "cgroupRoot", "cgroup below which pods live", text},
	{"cgroups-per-qos", "cgroupsPerQOS", "make a cgroup per class and pod", boolean},
	{"cluster-dns", "clusterDNS", "addresses of the cluster's DNS", list},
	{"cluster-domain", "clusterDomain", "the cluster's domain", text},
	{"resolv-conf", "resolvConf", "resolver configuration for pods", text},
	{"register-node", "registerNode", "create the Node object", boolean},
	{"register-with-taints", "registerWithTaints", "taints to register with, key=value:effect,...", taints},
	{"provider-id", "providerID", "the machine's ID in its cloud", text},
	{"anonymous-auth", "authentication.anonymous.enabled", "let callers without credentials through to authorization", boolean},
	{"authentication-token-webhook", "authentication.webhook.enabled", "ask the API server about tokens", boolean},
	{"authorization-mode", "authorization.mode", "Webhook or AlwaysAllow", text},
	{"client-ca-file", "authentication.x509.clientCAFile", "authority of client certificates", text},
	{"tls-cert-file", "tlsCertFile", "serving certificate", text},
	{"tls-private-key-file", "tlsPrivateKeyFile", "key of the serving certificate", text},
	{"tls-cipher-suites", "tlsCipherSuites", "allowed cipher suites", list},
	{"tls-min-version", "tlsMinVersion", "least TLS version", text},
	{"rotate-certificates", "rotateCertificates", "renew the client certificate before it expires", boolean},
	{"rotate-server-certificates", "serverTLSBootstrap", "request the serving certificate from the API server", boolean},
	{"system-reserved", "systemReserved", "resources for system processes, cpu=100m,...", mapOf("=")},
	{"kube-reserved", "kubeReserved", "resources for the node's own processes, cpu=100m,...", mapOf("=")},
	{"enforce-node-allocatable", "enforceNodeAllocatable", "what to bound: pods, system-reserved, kube-reserved, ...", list},
	{"eviction-hard", "evictionHard", "hard thresholds, memory.available<100Mi,...", mapOf("<")},
	{"eviction-soft", "evictionSoft", "soft thresholds, memory.available<500Mi,...", mapOf("<")},
	{"eviction-soft-grace-period", "evictionSoftGracePeriod", "how long a soft threshold may be crossed, memory.available=1m,...",
		mapOf("=")},
	{"eviction-minimum-reclaim", "evictionMinimumReclaim", "how much to free beyond a threshold, imagefs.available=1Gi,...", mapOf("=")},
	{"eviction-pressure-transition-period", "evictionPressureTransitionPeriod", "how long pressure conditions stay", duration},
	{"eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", "most grace in soft evictions, seconds", number},
	{"image-gc-high-threshold", "imageGCHighThresholdPercent", "disk usage that starts image collection", number},
	{"image-gc-low-threshold", "imageGCLowThresholdPercent", "disk usage that ends image collection", number},
	{"minimum-image-ttl-duration", "imageMinimumGCAge", "least age of an image to remove it", duration},
	{"node-status-update-frequency", "nodeStatusUpdateFrequency", "least time between minor status posts", duration},
	{"node-status-max-images", "nodeStatusMaxImages", "most images in the status", number},
	{"runtime-request-timeout", "runtimeRequestTimeout", "limit of ordinary runtime calls", duration},
	{"serialize-image-pulls", "serializeImagePulls", "pull one image at a time", boolean},
	{"container-log-max-size", "containerLogMaxSize", "size that rotates a log", text},
	{"container-log-max-files", "containerLogMaxFiles", "log files to keep per container", number},
	{"allowed-unsafe-sysctls", "allowedUnsafeSysctls", "unsafe sysctls that pods may set", list},
	{"protect-kernel-defaults", "protectKernelDefaults", "fail if kernel settings differ from what is needed", boolean},
	{"seccomp-default", "seccompDefault", "RuntimeDefault for pods without a profile", boolean},
	{"kube-api-qps", "kubeAPIQPS", "requests per second to the API server", number},
	{"kube-api-burst", "kubeAPIBurst", "burst of requests to the API server", number},
	{"feature-gates", "featureGates", "Gate=true,...", gates},
	{"logging-format", "logging.format", "text or json", text},
	{"enable-debugging-handlers", "enableDebuggingHandlers", "serve logs, exec, attach and port-forward", boolean},
	{"cpu-manager-policy", "cpuManagerPolicy", "none or static", text},
	{"cpu-manager-policy-options", "cpuManagerPolicyOptions", "full-pcpus-only=true,...", mapOf("=")},
	{"cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", "how often containers' CPUs are set again", duration},
	{"memory-manager-policy", "memoryManagerPolicy", "None or Static", text},
	{"topology-manager-policy", "topologyManagerPolicy", "none, best-effort, restricted or single-numa-node", text},
	{"topology-manager-policy-options", "topologyManagerPolicyOptions", "prefer-closest-numa-nodes=true,...", mapOf("=")},
	{"topology-manager-scope", "topologyManagerScope", "container or pod", text},
	{"system-reserved-cgroup", "systemReservedCgroup", "cgroup of system processes", text},
	{"kube-reserved-cgroup", "kubeReservedCgroup", "cgroup of the node's own processes", text},
	{"reserved-cpus", "reservedSystemCPUs", "cpus kept from pods", text},
}

func text(value string) (any, error) { return value, nil }

func number(value string) (any, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is no whole number", value)
	}
	return float64(n), nil
}

func boolean(value string) (any, error) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return nil, fmt.Errorf("%q is neither true nor false", value)
	}
	return on, nil
}

func duration(value string) (any, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		return nil, fmt.Errorf("%q is no duration", value)
	}
	return d.String(), nil
}

func list(value string) (any, error) {
	entries := []any{}
	for _, entry := range strings.Split(value, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}

func mapOf(separator string) func(string) (any, error) {
	return func(value string) (any, error) {
		entries := tree{}
		for _, entry := range strings.Split(value, ",") {
			if strings.TrimSpace(entry) == "" {
				continue
			}
			key, val, ok := strings.Cut(entry, separator)
			if !ok {
				return nil, fmt.Errorf("%q is no key%svalue", entry, separator)
			}
			entries[strings.TrimSpace(key)] = strings.TrimSpace(val)
		}
		return entries, nil
	}
}

func gates(value string) (any, error) {
	parsed, err := mapOf("=")(value)
	if err != nil {
		return nil, err
	}
	entries := parsed.(tree)
	for key, val := range entries {
		on, err := boolean(val.(string))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		entries[key] = on
	}
	return entries, nil
}

// taints reads key=value:effect,key:effect.
func taints(value string) (any, error) {
	var parsed []v1.Taint
	for _, entry := range strings.Split(value, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		pair, effect, ok := strings.Cut(entry, ":")
		if !ok {
			return nil, fmt.Errorf("%q is no key=value:effect", entry)
		}
		key, val, _ := strings.Cut(pair, "=")
		parsed = append(parsed, v1.Taint{Key: key, Value: val, Effect: v1.TaintEffect(effect)})
	}
	raw, err := json.Marshal(parsed)
	if err != nil {
		return nil, err
	}
	var plain any
	return plain, json.Unmarshal(raw, &plain)
}

// layers returns one layer per flag that was given, so that each field knows
// its flag.
func (f *flags) layers() ([]layer, error) {
	var layers []layer
	var failed error
	byName := map[string]fieldFlag{"v": {name: "v", path: "logging.verbosity", parse: number}}
	for _, flag := range fieldFlags {
		byName[flag.name] = flag
	}
	f.set.Visit(func(given *pflag.Flag) {
		flag, ok := byName[given.Name]
		if !ok || failed != nil {
			return
		}
		value, err := flag.parse(given.Value.String())
		if err != nil {
			failed = fmt.Errorf("reading --%s: %w", given.Name, err)
			return
		}
		parts := strings.Split(flag.path, ".")
		for i := len(parts) - 1; i > 0; i-- {
			value = tree{parts[i]: value}
		}
		layers = append(layers, layer{source: "--" + given.Name, fields: tree{parts[0]: value}})
	})
	return layers, failed
}
