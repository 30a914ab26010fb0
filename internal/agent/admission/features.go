package admission

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/berth-dev/berth/internal/agent/container"
)

// featureVersion is the version whose declared features the agent knows.
var featureVersion = version.MustParseSemantic("1.37.0")

// featureGates are the features that this agent has, by the names under which
// nodes declare them so that schedulers know. What depends on the runtime is
// asked of it as well.
var featureGates = types.FeatureGateMap{
	"RestartAllContainersOnContainerExits":         true,
	"InPlacePodLevelResourcesVerticalScaling":      true,
	"InPlacePodVerticalScalingInitContainers":      true,
	"VolumeBindMountOptions":                       true,
	"UserNamespacesHostNetworkSupport":             false,
	"InPlacePodVerticalScalingMemoryBackedVolumes": false,
}

// DeclaredFeatures are the names of what a node with this runtime can do.
func DeclaredFeatures(r container.RuntimeFeatures) []string {
	return features.DefaultFramework.DiscoverNodeFeatures(&types.NodeConfiguration{
		FeatureGates: featureGates, Version: featureVersion, RuntimeFeatures: types.RuntimeFeatures{MountOptions: r.MountOptions},
	})
}

// unsupported refuses pods that need what the node does not declare: they were
// placed by someone who did not ask.
func unsupported(p *v1.Pod, declared []string) (why, message string, ok bool) {
	const reason = "PodFeatureUnsupported"
	needs, err := features.DefaultFramework.InferForPodScheduling(&types.PodInfo{Spec: &p.Spec}, featureVersion)
	if err != nil {
		return reason, fmt.Sprintf("Failed to infer required features: %v", err), false
	}
	got, err := features.DefaultFramework.MatchNode(needs, &v1.Node{Status: v1.NodeStatus{DeclaredFeatures: declared}})
	if err != nil {
		return reason, fmt.Sprintf("Failed to match required features: %v", err), false
	}
	if !got.IsMatch {
		return reason, "Pod requires node features that are not available: " + strings.Join(got.UnsatisfiedRequirements, ", "), false
	}
	return "", "", true
}

// Featured refuses pods that need what this node does not declare.
func Featured(declared []string) Opinion {
	return func(p *v1.Pod) (reason, message string, ok bool) { return unsupported(p, declared) }
}
