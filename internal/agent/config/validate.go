package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// gateValues are the feature gates that users set, with the only value berth
// works with. Gates that became permanent are left out upstream as well.
var gateValues = map[string]bool{
	"RotateKubeletServerCertificate":                   true,
	"KubeletCgroupDriverFromCRI":                       true,
	"NodeSwap":                                         true,
	"InPlacePodVerticalScaling":                        true,
	"SidecarContainers":                                true,
	"GracefulNodeShutdown":                             true,
	"GracefulNodeShutdownBasedOnPodPriority":           true,
	"KubeletFineGrainedAuthz":                          true,
	"KubeletPSI":                                       true,
	"EventedPLEG":                                      true,
	"PodAndContainerStatsFromCRI":                      false,
	"KubeletTracing":                                   true,
	"NodeLogQuery":                                     false,
	"CPUManagerPolicyOptions":                          true,
	"CPUManagerPolicyAlphaOptions":                     true,
	"CPUManagerPolicyBetaOptions":                      true,
	"TopologyManagerPolicyOptions":                     true,
	"TopologyManagerPolicyAlphaOptions":                true,
	"TopologyManagerPolicyBetaOptions":                 true,
	"DisableCPUQuotaWithExclusiveCPUs":                 true,
	"DynamicResourceAllocation":                        true,
	"ResourceHealthStatus":                             true,
	"KubeletPodResourcesGet":                           true,
	"KubeletPodResourcesDynamicResources":              true,
	"ContainerCheckpoint":                              true,
	"ContainerRestartRules":                            true,
	"ContainerStopSignals":                             true,
	"EnvFiles":                                         true,
	"HostnameOverride":                                 true,
	"ImageMaximumGCAge":                                true,
	"ImageVolume":                                      true,
	"InPlacePodLevelResourcesVerticalScaling":          true,
	"KubeletCrashLoopBackOffMax":                       true,
	"KubeletEnsureSecretPulledImages":                  true,
	"KubeletServiceAccountTokenForCredentialProviders": true,
	"PodLevelResources":                                true,
	"PodReadyToStartContainersCondition":               true,
	"ProcMountType":                                    true,
	"RecursiveReadOnlyMounts":                          true,
	"RestartAllContainersOnContainerExits":             true,
	"SupplementalGroupsPolicy":                         true,
	"UserNamespacesSupport":                            true,
}

// evictionSignals are the signals that thresholds may name.
var evictionSignals = []string{"imagefs.available", "imagefs.inodesFree", "memory.available", "nodefs.available", "nodefs.inodesFree",
	"pid.available"}

// problems collects what is wrong, a line each.
type problems []string

func (p *problems) check(bad bool, format string, args ...any) {
	if bad {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

// images checks who may use images that are on the node already.
func (p *problems) images(cfg *kubeletv1beta1.KubeletConfiguration) {
	policies := []kubeletv1beta1.ImagePullCredentialsVerificationPolicy{
		kubeletv1beta1.NeverVerify, kubeletv1beta1.NeverVerifyPreloadedImages, kubeletv1beta1.NeverVerifyAllowlistedImages,
		kubeletv1beta1.AlwaysVerify,
	}
	policy := cfg.ImagePullCredentialsVerificationPolicy
	p.check(policy != "" && !slices.Contains(policies, policy), "imagePullCredentialsVerificationPolicy is %q: allowed are %v", policy,
		policies)
	p.check(len(cfg.PreloadedImagesVerificationAllowlist) > 0 && policy != kubeletv1beta1.NeverVerifyAllowlistedImages,
		"preloadedImagesVerificationAllowlist needs imagePullCredentialsVerificationPolicy %s", kubeletv1beta1.NeverVerifyAllowlistedImages)
}

// validate checks values that the types allow and the agent cannot work with.
func validate(cfg *kubeletv1beta1.KubeletConfiguration) []string {
	var p problems
	for _, field := range []struct {
		name  string
		value int32
		least int32
	}{{"port", cfg.Port, 1}, {"readOnlyPort", cfg.ReadOnlyPort, 0}, {"healthzPort", *cfg.HealthzPort, 0}} {
		p.check(field.value < field.least || field.value > 65535, "%s is %d: allowed are %d to 65535", field.name, field.value, field.least)
	}
	p.check(cfg.ReadOnlyPort != 0 && cfg.ReadOnlyPort == cfg.Port, "readOnlyPort and port are both %d", cfg.Port)
	p.images(cfg)
	p.check(cfg.MaxPods < 0, "maxPods is %d: must not be negative", cfg.MaxPods)
	p.check(cfg.PodsPerCore < 0, "podsPerCore is %d: must not be negative", cfg.PodsPerCore)
	p.check(cfg.NodeLeaseDurationSeconds <= 0, "nodeLeaseDurationSeconds is %d: must be positive", cfg.NodeLeaseDurationSeconds)
	p.check(*cfg.NodeStatusMaxImages < -1, "nodeStatusMaxImages is %d: must be -1 (all) or more", *cfg.NodeStatusMaxImages)
	p.check(!slices.Contains([]string{"cgroupfs", "systemd"}, cfg.CgroupDriver), "cgroupDriver is %q: allowed are cgroupfs and systemd",
		cfg.CgroupDriver)
	p.check(!slices.Contains([]string{"Webhook", "AlwaysAllow"}, string(cfg.Authorization.Mode)),
		"authorization.mode is %q: allowed are Webhook and AlwaysAllow", cfg.Authorization.Mode)
	p.check((cfg.TLSCertFile == "") != (cfg.TLSPrivateKeyFile == ""), "tlsCertFile and tlsPrivateKeyFile must be set together")
	p.check(!slices.Contains([]string{"text", "json"}, cfg.Logging.Format), "logging.format is %q: allowed are text and json",
		cfg.Logging.Format)
	high, low := *cfg.ImageGCHighThresholdPercent, *cfg.ImageGCLowThresholdPercent
	p.check(high < 0 || high > 100, "imageGCHighThresholdPercent is %d: allowed are 0 to 100", high)
	p.check(low < 0 || low > 100, "imageGCLowThresholdPercent is %d: allowed are 0 to 100", low)
	p.check(low >= high, "imageGCLowThresholdPercent %d must be below imageGCHighThresholdPercent %d", low, high)
	p.check(cfg.ImageMaximumGCAge.Duration != 0 && cfg.ImageMaximumGCAge.Duration <= cfg.ImageMinimumGCAge.Duration,
		"imageMaximumGCAge %v must be above imageMinimumGCAge %v", cfg.ImageMaximumGCAge.Duration, cfg.ImageMinimumGCAge.Duration)
	p.check(*cfg.ContainerLogMaxFiles < 2, "containerLogMaxFiles is %d: must be at least 2", *cfg.ContainerLogMaxFiles)
	if _, err := resource.ParseQuantity(cfg.ContainerLogMaxSize); err != nil {
		p.check(true, "containerLogMaxSize is %q: %v", cfg.ContainerLogMaxSize, err)
	}
	if limit := cfg.CrashLoopBackOff.MaxContainerRestartPeriod.Duration; limit < time.Second || limit > 5*time.Minute {
		p.check(true, "crashLoopBackOff.maxContainerRestartPeriod is %v: allowed are 1s to 5m", limit)
	}
	for _, gate := range slices.Sorted(maps.Keys(cfg.FeatureGates)) {
		if gate == memoryQoS {
			continue // the one that can be switched
		}
		only, known := gateValues[gate]
		p.check(!known, "featureGates.%s is not known to berth: leave it out", gate)
		p.check(known && only != cfg.FeatureGates[gate], "featureGates.%s cannot be %v: berth always runs with %v", gate, !only, only)
	}
	for i, taint := range cfg.RegisterWithTaints {
		p.check(taint.Key == "", "registerWithTaints[%d] has no key", i)
		p.check(!slices.Contains([]v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute},
			taint.Effect),
			"registerWithTaints[%d] has effect %q: allowed are NoSchedule, PreferNoSchedule and NoExecute", i, taint.Effect)
	}
	validateMemoryQoS(&p, cfg)
	validateTracing(&p, cfg)
	validateReserved(&p, cfg)
	validateEnforced(&p, cfg)
	validateManagers(&p, cfg)
	validateEviction(&p, cfg)
	validateShutdown(&p, cfg)
	return p
}

// memoryQoS is the gate of memoryThrottlingFactor and memoryReservationPolicy.
const memoryQoS = "MemoryQoS"

// MemoryQoS says whether memory is throttled and reserved, and how: where a
// container is slowed down between its request and its limit (0: nowhere), and
// whether requests are protected from reclaim.
func MemoryQoS(cfg *kubeletv1beta1.KubeletConfiguration) (on bool, factor float64, reserve bool) {
	if !cfg.FeatureGates[memoryQoS] {
		return false, 0, false
	}
	if cfg.MemoryThrottlingFactor != nil {
		factor = *cfg.MemoryThrottlingFactor
	}
	return true, factor, cfg.MemoryReservationPolicy == kubeletv1beta1.TieredReservationMemoryReservationPolicy
}

// feature is a feature gate as it is in effect. One with a stage can be
// switched.
type feature struct {
	Name, Stage string
	Enabled     bool
}

// Features are the gates that a configuration may name, by name.
func Features(cfg *kubeletv1beta1.KubeletConfiguration) []feature {
	if cfg == nil {
		return nil
	}
	on, _, _ := MemoryQoS(cfg)
	list := []feature{{memoryQoS, "ALPHA", on}}
	for name, only := range gateValues {
		list = append(list, feature{Name: name, Enabled: only})
	}
	slices.SortFunc(list, func(a, b feature) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func validateMemoryQoS(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	policies := []kubeletv1beta1.MemoryReservationPolicy{kubeletv1beta1.NoneMemoryReservationPolicy,
		kubeletv1beta1.TieredReservationMemoryReservationPolicy}
	p.check(cfg.MemoryReservationPolicy != "" && !slices.Contains(policies, cfg.MemoryReservationPolicy),
		"memoryReservationPolicy is %q: allowed are %v", cfg.MemoryReservationPolicy, policies)
	if f := cfg.MemoryThrottlingFactor; f != nil {
		p.check(*f <= 0 || *f > 1, "memoryThrottlingFactor is %v: must be above 0 and at most 1", *f)
		p.check(*f != 0.9 && !cfg.FeatureGates[memoryQoS], "memoryThrottlingFactor needs featureGates.%s: true", memoryQoS)
	}
	p.check(cfg.MemoryReservationPolicy == kubeletv1beta1.TieredReservationMemoryReservationPolicy && !cfg.FeatureGates[memoryQoS],
		"memoryReservationPolicy needs featureGates.%s: true", memoryQoS)
}

func validateTracing(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	if cfg.Tracing == nil {
		return
	}
	if rate := cfg.Tracing.SamplingRatePerMillion; rate != nil {
		p.check(*rate < 0 || *rate > 1000000, "tracing.samplingRatePerMillion is %d: allowed are 0 to 1000000", *rate)
	}
	if endpoint := cfg.Tracing.Endpoint; endpoint != nil {
		_, _, err := net.SplitHostPort(*endpoint)
		p.check(err != nil && !strings.Contains(*endpoint, "://"),
			"tracing.endpoint is %q: must be host:port of a collector's gRPC receiver", *endpoint)
	}
}

func validateReserved(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	for name, reserved := range map[string]map[string]string{"systemReserved": cfg.SystemReserved, "kubeReserved": cfg.KubeReserved} {
		for _, key := range slices.Sorted(maps.Keys(reserved)) {
			p.check(!slices.Contains([]string{"cpu", "memory", "ephemeral-storage", "pid"}, key),
				"%s.%s: allowed are cpu, memory, ephemeral-storage and pid", name, key)
			quantity, err := resource.ParseQuantity(reserved[key])
			p.check(err != nil || quantity.Sign() < 0, "%s.%s is %q: must be a quantity that is not negative", name, key, reserved[key])
		}
	}
}

func validateEviction(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	for name, thresholds := range map[string]map[string]string{"evictionHard": cfg.EvictionHard, "evictionSoft": cfg.EvictionSoft,
		"evictionMinimumReclaim": cfg.EvictionMinimumReclaim} {
		for _, signal := range slices.Sorted(maps.Keys(thresholds)) {
			p.check(!slices.Contains(evictionSignals, signal), "%s.%s is no signal: allowed are %s", name, signal,
				strings.Join(evictionSignals, ", "))
			if _, _, err := ParseThreshold(thresholds[signal]); err != nil {
				p.check(true, "%s.%s: %v", name, signal, err)
			}
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(cfg.EvictionSoft)) {
		_, ok := cfg.EvictionSoftGracePeriod[signal]
		p.check(!ok, "evictionSoft.%s needs evictionSoftGracePeriod.%s", signal, signal)
	}
	for _, signal := range slices.Sorted(maps.Keys(cfg.EvictionSoftGracePeriod)) {
		period, err := time.ParseDuration(cfg.EvictionSoftGracePeriod[signal])
		p.check(err != nil || period < 0, "evictionSoftGracePeriod.%s is %q: must be a duration that is not negative", signal,
			cfg.EvictionSoftGracePeriod[signal])
		_, ok := cfg.EvictionSoft[signal]
		p.check(!ok, "evictionSoftGracePeriod.%s has no evictionSoft.%s", signal, signal)
	}
	p.check(cfg.EvictionMaxPodGracePeriod < 0, "evictionMaxPodGracePeriod is %d: must not be negative", cfg.EvictionMaxPodGracePeriod)
}

func validateShutdown(p *problems, cfg *kubeletv1beta1.KubeletConfiguration) {
	total, critical := cfg.ShutdownGracePeriod.Duration, cfg.ShutdownGracePeriodCriticalPods.Duration
	p.check(total < 0 || critical < 0, "shutdownGracePeriod and shutdownGracePeriodCriticalPods must not be negative")
	p.check(critical > total, "shutdownGracePeriodCriticalPods %v must not be above shutdownGracePeriod %v", critical, total)
	p.check(len(cfg.ShutdownGracePeriodByPodPriority) > 0 && (total > 0 || critical > 0),
		"shutdownGracePeriodByPodPriority excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods")
}
