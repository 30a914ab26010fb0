package enforce

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/resource"
)

// says is a runtime that answers RuntimeConfig.
type says struct {
	answer *runtimeapi.RuntimeConfigResponse
	err    error
}

func (s says) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return s.answer, s.err
}

// TestDriver: the runtime's word counts before the file's, and cgroupfs is what is left.
func TestDriver(t *testing.T) {
	linux := func(d runtimeapi.CgroupDriver) *runtimeapi.RuntimeConfigResponse {
		return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: d}}
	}
	for _, c := range []struct {
		why     string
		runtime says
		file    string
		want    resource.Driver
	}{
		{"runtime: systemd", says{answer: linux(runtimeapi.CgroupDriver_SYSTEMD)}, "cgroupfs", resource.Systemd},
		{"runtime: cgroupfs", says{answer: linux(runtimeapi.CgroupDriver_CGROUPFS)}, "systemd", resource.Cgroupfs},
		{"a runtime that does not know the question", says{err: errors.New("unimplemented")}, "systemd", resource.Systemd},
		{"a runtime of no Linux", says{answer: &runtimeapi.RuntimeConfigResponse{}}, "systemd", resource.Systemd},
		{"nobody says", says{err: errors.New("unimplemented")}, "", resource.Cgroupfs},
	} {
		cfg := &Config{Runtime: c.runtime, Kubelet: &kubeletv1beta1.KubeletConfiguration{CgroupDriver: c.file}}
		if got := cfg.driver(t.Context()); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// TestWhatCgroupV1CannotDo: settings that need v2 are refused on v1 alone, and named.
func TestWhatCgroupV1CannotDo(t *testing.T) {
	old, unified := resource.Hierarchy{V1: map[string]string{"cpu": "/c"}}, resource.Hierarchy{Unified: "/c"}
	if old.Version() != 1 || unified.Version() != 2 {
		t.Fatalf("versions %d and %d", old.Version(), unified.Version())
	}
	for name, change := range map[string]func(*kubeletv1beta1.KubeletConfiguration){
		"":                        func(*kubeletv1beta1.KubeletConfiguration) {},
		"memorySwap.swapBehavior": func(k *kubeletv1beta1.KubeletConfiguration) { k.MemorySwap.SwapBehavior = config.LimitedSwap },
		"featureGates.MemoryQoS": func(k *kubeletv1beta1.KubeletConfiguration) {
			k.FeatureGates = map[string]bool{"MemoryQoS": true}
		},
	} {
		k := &kubeletv1beta1.KubeletConfiguration{}
		change(k)
		cfg := &Config{Kubelet: k}
		if err := cfg.check(old); (err == nil) != (name == "") || err != nil && !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%q on v1: %v", name, err)
		}
		if err := cfg.check(unified); err != nil {
			t.Errorf("%q on v2: %v", name, err)
		}
	}
}

// TestPodsLimits: all pods together get what the host has less what is
// reserved; eviction thresholds are not taken off
// (https://kubernetes.io/docs/tasks/administer-cluster/reserve-compute-resources/).
func TestPodsLimits(t *testing.T) {
	host := &node.HostInfo{CPUs: 4, MemoryBytes: 8 << 30, MaxPIDs: 1000, HugePages: map[int64]int64{2 << 20: 512}}
	list := func(cpu, memory, pids string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: apiresource.MustParse(cpu), v1.ResourceMemory: apiresource.MustParse(memory),
			resource.PIDs: apiresource.MustParse(pids)}
	}
	const gib = 1 << 30
	for _, c := range []struct {
		why         string
		enforce     string
		system      v1.ResourceList
		kube        v1.ResourceList
		milli       int64
		memory, ids int64
	}{
		{"nothing reserved", config.EnforcePods, nil, nil, 4000, 7 * gib, 1000}, // 1 GiB is huge pages
		{"reserved for both", config.EnforcePods, list("500m", "1Gi", "100"), list("500m", "2Gi", "50"), 3000, 4 * gib, 850},
		{"more reserved than there is", config.EnforcePods, list("8", "16Gi", "2000"), nil, 0, 0, 0},
		{"not enforced", config.EnforceSystem, list("500m", "1Gi", "100"), nil, -1, 0, 0},
	} {
		k := &kubeletv1beta1.KubeletConfiguration{EnforceNodeAllocatable: []string{c.enforce}}
		set := node.Settings{Reserved: node.Reservation{System: c.system, Kube: c.kube,
			EvictionHard: map[v1.ResourceName]config.Threshold{v1.ResourceMemory: {Quantity: apiresource.MustParse("500Mi")}}}}
		got := PodsLimits(k, set, host)
		shares := resource.CPUShares(c.milli)
		if c.milli < 0 {
			shares = 0
		}
		if got.CPUShares != shares || got.MemoryLimit != c.memory || got.PidsLimit != c.ids {
			t.Errorf("%s: %+v, want %d shares, %d bytes, %d processes", c.why, got, shares, c.memory, c.ids)
		}
		if huge := got.Hugepages["2MB"]; c.milli >= 0 && huge != gib {
			t.Errorf("%s: %d bytes of huge pages in %v", c.why, huge, got.Hugepages)
		}
		if set.Reserved.EvictionHard == nil {
			t.Errorf("%s: the caller's settings were changed", c.why)
		}
	}
	if got := HugepageSizes(host); !slices.Equal(got, []string{"2MB"}) {
		t.Errorf("sizes %q", got)
	}
}
