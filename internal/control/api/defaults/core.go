package defaults

import (
	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// clientIPAffinity is how long, in seconds, a client keeps its endpoint when a
// Service asks for ClientIP affinity without saying how long.
const clientIPAffinity int32 = v1.DefaultClientIPServiceAffinitySeconds

func ReplicationController(rc *v1.ReplicationController) {
	fill(&rc.Spec.Replicas, 1)
	if rc.Spec.Template == nil {
		return
	}
	podTemplate(rc.Spec.Template)
	labels := rc.Spec.Template.Labels
	if len(labels) == 0 {
		return
	}
	if len(rc.Spec.Selector) == 0 {
		rc.Spec.Selector = copyMap(labels)
	}
	if len(rc.Labels) == 0 {
		rc.Labels = copyMap(labels)
	}
}

func Service(svc *v1.Service) {
	spec := &svc.Spec
	zero(&spec.SessionAffinity, v1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case v1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case v1.ServiceAffinityClientIP:
		c := spec.SessionAffinityConfig
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			timeout := clientIPAffinity
			spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	zero(&spec.Type, v1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		port := &spec.Ports[i]
		zero(&port.Protocol, v1.ProtocolTCP)
		if port.TargetPort == (intstr.IntOrString{}) || port.TargetPort == intstr.FromString("") {
			port.TargetPort = intstr.FromInt32(port.Port)
		}
	}
	if reachableFromOutside(spec) {
		zero(&spec.ExternalTrafficPolicy, v1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type != v1.ServiceTypeExternalName {
		fill(&spec.InternalTrafficPolicy, v1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == v1.ServiceTypeLoadBalancer {
		fill(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range svc.Status.LoadBalancer.Ingress {
			if ingress := &svc.Status.LoadBalancer.Ingress[i]; ingress.IP != "" {
				fill(&ingress.IPMode, v1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func reachableFromOutside(spec *v1.ServiceSpec) bool {
	switch spec.Type {
	case v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer:
		return true
	case v1.ServiceTypeClusterIP:
		return len(spec.ExternalIPs) > 0
	}
	return false
}

func Endpoints(e *v1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			zero(&e.Subsets[i].Ports[j].Protocol, v1.ProtocolTCP)
		}
	}
}

// Namespace keeps the label that lets selectors pick namespaces by name; a
// client cannot remove or change it.
func Namespace(ns *v1.Namespace) {
	zero(&ns.Status.Phase, v1.NamespaceActive)
	if ns.Name == "" {
		return // the name is generated later, and defaulting runs again on the stored object
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[v1.LabelMetadataName] = ns.Name
}

func Node(n *v1.Node) {
	roundUp(n.Status.Capacity)
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundUp(n.Status.Allocatable)
}

// Secret moves stringData, which exists for writers only, into data, where it
// wins over the same key. It does so here and not when the object is stored so
// that field management records data for the writer, and server-side apply of
// the same manifest meets no conflict.
func Secret(s *v1.Secret) {
	zero(&s.Type, v1.SecretTypeOpaque)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// LimitRange completes the container rows: default limit from the maximum,
// default request from the default limit or else from the minimum.
func LimitRange(l *v1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		for _, list := range []v1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			roundUp(list)
		}
		if item.Type != v1.LimitTypeContainer {
			continue
		}
		item.Default = complete(item.Default, item.Max)
		item.DefaultRequest = complete(item.DefaultRequest, item.Default)
		item.DefaultRequest = complete(item.DefaultRequest, item.Min)
	}
}

// complete adds to list what it lacks and from has. The result is never nil.
func complete(list, from v1.ResourceList) v1.ResourceList {
	if list == nil {
		list = v1.ResourceList{}
	}
	for name, q := range from {
		if _, set := list[name]; !set {
			list[name] = q.DeepCopy()
		}
	}
	return list
}

func ResourceQuota(q *v1.ResourceQuota) {
	roundUp(q.Spec.Hard)
	roundUp(q.Status.Hard)
	roundUp(q.Status.Used)
}

func copyMap(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func PodTemplate(t *v1.PodTemplate) { podTemplate(&t.Template) }

// TokenRequest completes what is asked for a service account and never stored.
func TokenRequest(r *authentication.TokenRequest) { fill(&r.Spec.ExpirationSeconds, tokenLifetime) }
