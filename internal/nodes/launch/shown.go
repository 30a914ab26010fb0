package launch

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// shown is the configuration in force as /configz shows it, with the field
// names of KubeControllerManagerConfiguration.
type shown struct {
	metav1.TypeMeta         `json:",inline"`
	Generic                 any
	KubeCloudShared         any
	NodeLifecycleController struct {
		NodeEvictionRate, SecondaryNodeEvictionRate    float64
		NodeStartupGracePeriod, NodeMonitorGracePeriod metav1.Duration
		LargeClusterSizeThreshold                      int
		UnhealthyZoneThreshold                         float64
	}
	NodeIPAMController struct {
		ServiceCIDR       string
		NodeCIDRMaskSizes []int
	}
	PodGCController struct{ TerminatedPodGCThreshold int }
}

// effective is what is in force.
func (o *Options) effective() (*unstructured.Unstructured, error) {
	s := shown{Generic: o.Generic.GenericControllerManagerConfiguration, KubeCloudShared: o.Shared.KubeCloudSharedConfiguration}
	s.APIVersion, s.Kind = "kubecontrollermanager.config.k8s.io/v1alpha1", "KubeControllerManagerConfiguration"
	n, h := &s.NodeLifecycleController, o.Health
	n.NodeEvictionRate, n.SecondaryNodeEvictionRate = h.EvictionRate, h.SecondaryEvictionRate
	n.NodeStartupGracePeriod.Duration, n.NodeMonitorGracePeriod.Duration = h.StartupGrace, h.Grace
	n.LargeClusterSizeThreshold, n.UnhealthyZoneThreshold = h.LargeZone, h.UnhealthyThreshold
	s.NodeIPAMController.ServiceCIDR = o.ServiceRange
	if ranges, _, err := o.Ranges(); err == nil {
		for _, r := range ranges {
			s.NodeIPAMController.NodeCIDRMaskSizes = append(s.NodeIPAMController.NodeCIDRMaskSizes, r.NodeBits)
		}
	}
	s.PodGCController.TerminatedPodGCThreshold = o.KeepFinished
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("showing the configuration: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("showing the configuration: %w", err)
	}
	return u, nil
}

// unmanaged drops from objects, before they are kept, what no controller here
// reads and what is most of their size.
func unmanaged(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	if n, ok := o.(*v1.Node); ok {
		n.Status.Images = nil
	}
	return o, nil
}
