package launch

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func newSlices(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
	return discoveryinformers.NewFilteredEndpointSliceInformer(c, metav1.NamespaceAll, resync, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.LabelSelector = "!" + corev1.IsHeadlessService
		})
}

// stripper takes out of objects what the proxy never reads, and shares what
// many endpoints have in common: the cache is most of the proxy's memory.
type stripper struct {
	yes, no *bool
	names   map[string]*string
}

func newStripper() *stripper {
	return &stripper{ptr.To(true), ptr.To(false), map[string]*string{}}
}

// strip is a cache.TransformFunc. Each informer calls it from one goroutine,
// and only the one of slices uses names.
func (s *stripper) strip(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		o.ManagedFields, o.Annotations, o.OwnerReferences, o.Spec.Selector = nil, nil, nil, nil
	case *discoveryv1.EndpointSlice:
		s.slice(o)
	}
	return o, nil
}

func (s *stripper) slice(o *discoveryv1.EndpointSlice) {
	o.ManagedFields, o.OwnerReferences, o.GenerateName = nil, nil, ""
	t, ok := o.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if o.Annotations = nil; ok {
		o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: t}
	}
	labels := map[string]string{}
	for _, l := range []string{discoveryv1.LabelServiceName, corev1.IsHeadlessService} {
		if v, ok := o.Labels[l]; ok {
			labels[l] = v
		}
	}
	o.Labels = labels
	// Decoding has left room behind them.
	o.Endpoints = slices.Clone(o.Endpoints)
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		e.TargetRef, e.Hostname, e.DeprecatedTopology, e.Zone = nil, nil, nil, nil
		e.NodeName = s.name(e.NodeName)
		c := &e.Conditions
		c.Ready, c.Serving, c.Terminating = s.flag(c.Ready), s.flag(c.Serving), s.flag(c.Terminating)
	}
}

func (s *stripper) flag(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return s.yes
	}
	return s.no
}

func (s *stripper) name(n *string) *string {
	if n == nil {
		return nil
	}
	have, ok := s.names[*n]
	if !ok {
		have = ptr.To(*n)
		s.names[*n] = have
	}
	return have
}
