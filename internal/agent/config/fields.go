package config

import "strings"

// support says what berth does with a field.
type support int

const (
	// Honoured: the field has its documented effect.
	Honoured support = iota
	// Subsumed: berth does at least what the field asks for, in another way;
	// the value is accepted and a note says so at start.
	Subsumed
	// Refused: only the default is accepted.
	Refused
)

func (s support) String() string {
	return [...]string{"honoured", "subsumed", "refused"}[s]
}

// field is one row of the table: a path (a field, or a struct for all below)
// and what berth does with it.
type field struct {
	Path    string
	Support support
	// Note says what honours the field, what happens instead, or what to use.
	Note string
}

const noFilter = "the agent writes no packet filter rules; `berth proxy` owns them"

// Fields is the table of all fields of KubeletConfiguration v1beta1.
var Fields = []field{
	{"enableServer", Honoured, "API on `port`"},
	{"staticPodPath", Honoured, "static pods, noticed at once"},
	{"podLogsDir", Honoured, ""},
	{"syncFrequency", Subsumed, "pods are synced by events; nothing waits for a period"},
	{"fileCheckFrequency", Subsumed, "the manifest directory is watched, not read on a period"},
	{"httpCheckFrequency", Honoured, "how often `staticPodURL` is read"},
	{"staticPodURL", Honoured, ""},
	{"staticPodURLHeader", Honoured, "values are never shown"},
	{"address", Honoured, ""},
	{"port", Honoured, ""},
	{"readOnlyPort", Honoured, "off by default; a warning is logged when on"},
	{"tlsCertFile", Honoured, "reloaded when it changes"},
	{"tlsPrivateKeyFile", Honoured, "reloaded when it changes"},
	{"tlsCipherSuites", Honoured, ""},
	{"tlsCurvePreferences", Honoured, ""},
	{"tlsMinVersion", Honoured, ""},
	{"rotateCertificates", Honoured, ""},
	{"serverTLSBootstrap", Honoured, ""},
	{"authentication.x509.clientCAFile", Honoured, "reloaded when it changes"},
	{"authentication.webhook", Honoured, "TokenReview"},
	{"authentication.anonymous.enabled", Honoured, "off by default with and without a file; a warning is logged when on"},
	{"authorization.mode", Honoured, "Webhook by default with and without a file; a warning is logged for AlwaysAllow"},
	{"authorization.webhook", Honoured, "SubjectAccessReview"},
	{"registryPullQPS", Honoured, ""},
	{"registryBurst", Honoured, ""},
	{"imagePullCredentialsVerificationPolicy", Honoured, ""},
	{"preloadedImagesVerificationAllowlist", Honoured, "only with the policy NeverVerifyAllowlistedImages"},
	{"eventRecordQPS", Subsumed, "events are sent in the background, repeated ones are merged"},
	{"eventBurst", Subsumed, "events are sent in the background, repeated ones are merged"},
	{"enableDebuggingHandlers", Honoured, ""},
	{"enableContentionProfiling", Honoured, ""},
	{"healthzPort", Honoured, "0 is off"},
	{"healthzBindAddress", Honoured, ""},
	{"oomScoreAdj", Honoured, ""},
	{"clusterDomain", Honoured, ""},
	{"clusterDNS", Honoured, ""},
	{"streamingConnectionIdleTimeout", Refused, "the runtime's streaming server decides: set it there"},
	{"nodeStatusUpdateFrequency", Honoured,
		"the minimum time between posts of changes that no controller acts upon; others are posted at once"},
	{"nodeStatusReportFrequency", Honoured, ""},
	{"nodeLeaseDurationSeconds", Honoured, ""},
	{"imageMinimumGCAge", Honoured, ""},
	{"imageMaximumGCAge", Honoured, ""},
	{"imageGCHighThresholdPercent", Honoured, ""},
	{"imageGCLowThresholdPercent", Honoured, ""},
	{"volumeStatsAggPeriod", Honoured, "how old volume stats may get before a request renews them; negative switches them off"},
	{"kubeletCgroups", Honoured, "shown in stats as \"kubelet\"; if empty, the cgroup that the agent is in"},
	{"systemCgroups", Refused, "place system processes with systemd slices"},
	{"cgroupRoot", Honoured, ""},
	{"cgroupsPerQOS", Honoured, ""},
	{"cgroupDriver", Honoured, "the runtime's own answer wins where it gives one"},
	{"cpuManagerPolicy", Honoured, "none or static; a change needs `cpu_manager_state` removed"},
	{"singleProcessOOMKill", Honoured, ""},
	{"cpuManagerPolicyOptions", Honoured, "all six options; no gate is needed"},
	{"cpuManagerReconcilePeriod", Honoured,
		"containers move when the shared CPUs change; this is how often all are set again without a reason"},
	{"memoryManagerPolicy", Honoured, "None or Static; a change needs `memory_manager_state` removed"},
	{"topologyManagerPolicy", Honoured, ""},
	{"topologyManagerScope", Honoured, ""},
	{"topologyManagerPolicyOptions", Honoured, "prefer-closest-numa-nodes, max-allowable-numa-nodes"},
	{"qosReserved", Refused, "use `systemReserved` and `kubeReserved`"},
	{"runtimeRequestTimeout", Honoured, ""},
	{"hairpinMode", Subsumed, "the network plugin decides"},
	{"maxPods", Honoured, ""},
	{"podCIDR", Refused, "the Node object's spec.podCIDRs are used"},
	{"podPidsLimit", Honoured, ""},
	{"resolvConf", Honoured, ""},
	{"runOnce", Refused, "run pods once with the runtime's own tools"},
	{"cpuCFSQuota", Honoured, ""},
	{"cpuCFSQuotaPeriod", Honoured, ""},
	{"nodeStatusMaxImages", Honoured, ""},
	{"maxOpenFiles", Honoured, ""},
	{"contentType", Honoured, ""},
	{"kubeAPIQPS", Subsumed, "requests are made when something changed; the API server's own fairness bounds them"},
	{"kubeAPIBurst", Subsumed, "requests are made when something changed; the API server's own fairness bounds them"},
	{"serializeImagePulls", Subsumed, "pulls run side by side, at most `maxParallelImagePulls` of them (4 if not set)"},
	{"maxParallelImagePulls", Honoured, ""},
	{"evictionHard", Honoured, "setting any key replaces all defaults unless `mergeDefaultEvictionSettings`"},
	{"evictionSoft", Honoured, ""},
	{"evictionSoftGracePeriod", Honoured, ""},
	{"evictionPressureTransitionPeriod", Honoured, ""},
	{"evictionMaxPodGracePeriod", Honoured, ""},
	{"evictionMinimumReclaim", Honoured, ""},
	{"mergeDefaultEvictionSettings", Honoured, ""},
	{"podsPerCore", Honoured, ""},
	{"enableControllerAttachDetach", Honoured, ""},
	{"protectKernelDefaults", Honoured, ""},
	{"makeIPTablesUtilChains", Subsumed, noFilter},
	{"iptablesMasqueradeBit", Subsumed, noFilter},
	{"iptablesDropBit", Subsumed, noFilter},
	{"featureGates", Honoured, "a gate berth does not know, or cannot switch, is refused by name"},
	{"failSwapOn", Honoured, ""},
	{"memorySwap.swapBehavior", Honoured, "NoSwap or LimitedSwap, which needs cgroup v2"},
	{"containerLogMaxSize", Honoured, ""},
	{"containerLogMaxFiles", Honoured, ""},
	{"containerLogMaxWorkers", Honoured, ""},
	{"containerLogMonitorInterval", Honoured, ""},
	{"configMapAndSecretChangeDetectionStrategy", Subsumed, "always watched"},
	{"systemReserved", Honoured, ""},
	{"kubeReserved", Honoured, ""},
	{"reservedSystemCPUs", Honoured, "takes the place of cpu in `systemReserved` and `kubeReserved`"},
	{"showHiddenMetricsForVersion", Refused, "no metric is hidden"},
	{"systemReservedCgroup", Honoured, "must exist"},
	{"kubeReservedCgroup", Honoured, "must exist"},
	{"enforceNodeAllocatable", Honoured, "pods, system-reserved, kube-reserved, the -compressible two (cpu alone), none"},
	{"allowedUnsafeSysctls", Honoured, ""},
	{"defaultPodSysctls", Refused, "set sysctls in the pod"},
	{"volumePluginDir", Refused, "flexVolume is not supported: use a CSI driver"},
	{"providerID", Honoured, ""},
	{"kernelMemcgNotification", Subsumed, "kernel notifications are always used"},
	{"logging.format", Honoured, "text or json"},
	{"logging.verbosity", Honoured, "4 and above is debug"},
	{"logging.flushFrequency", Subsumed, "lines are written at once"},
	{"logging.vmodule", Refused, "use `logging.verbosity`"},
	{"logging.options", Subsumed, "lines are written at once"},
	{"enableSystemLogHandler", Honoured, ""},
	{"enableSystemLogQuery", Honoured, "`/logs/?query=`: a service's file below /var/log, else the journal (journalctl)"},
	{"shutdownGracePeriod", Honoured, ""},
	{"shutdownGracePeriodCriticalPods", Honoured, ""},
	{"shutdownGracePeriodByPodPriority", Honoured, ""},
	{"crashLoopBackOff.maxContainerRestartPeriod", Honoured, ""},
	{"reservedMemory", Honoured, "must sum up to what node allocatable reserves"},
	{"enableProfilingHandler", Honoured, ""},
	{"enableDebugFlagsHandler", Honoured, ""},
	{"seccompDefault", Honoured, ""},
	{"memoryThrottlingFactor", Honoured,
		"memory.high of containers; with featureGates.MemoryQoS, on cgroup v2; refused by name without them"},
	{"memoryReservationPolicy", Honoured,
		"memory.min and memory.low; with featureGates.MemoryQoS, on cgroup v2; refused by name without them"},
	{"registerWithTaints", Honoured, ""},
	{"registerNode", Honoured, ""},
	{"tracing", Honoured, "spans of requests to `port` and of calls of the runtime, over OTLP (gRPC, in plain text)"},
	{"localStorageCapacityIsolation", Honoured, ""},
	{"containerRuntimeEndpoint", Honoured, ""},
	{"imageServiceEndpoint", Honoured, ""},
	{"failCgroupV1", Subsumed, "cgroup v1 is supported, with the event `CgroupV1`; the value decides nothing"},
	{"userNamespaces.idsPerPod", Honoured, "a multiple of 65536"},
}

// fieldFor finds the row of a leaf: its own, or that of a struct above it.
func fieldFor(path string) (field, bool) {
	for {
		for _, field := range Fields {
			if field.Path == path {
				return field, true
			}
		}
		dot := strings.LastIndexByte(path, '.')
		if dot < 0 {
			return field{}, false
		}
		path = path[:dot]
	}
}
