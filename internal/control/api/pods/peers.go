package pods

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/lru"

	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/auth/nodeauthz"
)

// rememberedPeers is how many reduced pods are remembered, so that one change
// that many nodes watch is reduced once.
const rememberedPeers = 1024

// shown is the pod storage as callers see it. A node sees its own pods as they
// are. Of other nodes' pods it sees what network policies take and nothing
// else: names, labels, addresses and named ports, never environment, command
// lines, images or volumes. So a node may be granted list and watch of all pods
// and still learn of no workload but its own.
type shown struct {
	*registry.Store
	peers *lru.Cache
}

func newShown(r *registry.Store) *shown { return &shown{r, lru.New(rememberedPeers)} }

func (s *shown) List(ctx context.Context, options *metainternal.ListOptions) (runtime.Object, error) {
	object, err := s.Store.List(ctx, options)
	node, isNode := callerNode(ctx)
	if err != nil || !isNode {
		return object, err
	}
	list, ok := object.(*v1.PodList)
	if !ok {
		return nil, fmt.Errorf("listing pods gave %T", object)
	}
	reduced := &v1.PodList{TypeMeta: list.TypeMeta, ListMeta: list.ListMeta, Items: make([]v1.Pod, len(list.Items))}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName == node {
			reduced.Items[i] = *pod
		} else {
			reduced.Items[i] = *peer(pod)
		}
	}
	return reduced, nil
}

func (s *shown) Watch(ctx context.Context, options *metainternal.ListOptions) (watch.Interface, error) {
	events, err := s.Store.Watch(ctx, options)
	node, isNode := callerNode(ctx)
	if err != nil || !isNode {
		return events, err
	}
	return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
		if e.Type != watch.Added && e.Type != watch.Modified && e.Type != watch.Deleted {
			return e, true
		}
		pod := s.reduce(e)
		if pod == nil {
			return e, false // no pod: nothing a node should see
		}
		if pod.Spec.NodeName != node {
			e.Object = pod
		}
		return e, true
	}), nil
}

// callerNode is the node that asks, if one does.
func callerNode(ctx context.Context) (string, bool) {
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return "", false
	}
	return nodeauthz.NodeIdentity(who)
}

// peerKey names one state of a pod. The kind of event belongs to it: an event
// that a selector makes a deletion shows an older state under the same resource
// version.
type peerKey struct {
	kind         watch.EventType
	uid, version string
}

// reduce returns the reduced pod of an event, nil if it has none. All watches
// of a pod share one object, which holds its encodings; it must not be changed,
// and getting at the pod inside copies it.
func (s *shown) reduce(e watch.Event) *v1.Pod {
	m, ok := e.Object.(metav1.Object)
	if !ok {
		return nil
	}
	key := peerKey{e.Type, string(m.GetUID()), m.GetResourceVersion()}
	if known, ok := s.peers.Get(key); ok {
		return known.(*v1.Pod)
	}
	object := e.Object
	if shared, ok := object.(runtime.CacheableObject); ok {
		object = shared.GetObject()
	}
	pod, ok := object.(*v1.Pod)
	if !ok {
		return nil
	}
	reduced := peer(pod)
	s.peers.Add(key, reduced)
	return reduced
}

// peer is what network policies take of a pod.
func peer(pod *v1.Pod) *v1.Pod {
	return &v1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: v1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
			InitContainers: portsOf(pod.Spec.InitContainers), Containers: portsOf(pod.Spec.Containers),
		},
		Status: v1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs, HostIP: pod.Status.HostIP},
	}
}

// portsOf keeps the containers that name ports. RestartPolicy tells sidecars
// from containers that end.
func portsOf(containers []v1.Container) []v1.Container {
	var out []v1.Container
	for i := range containers {
		if c := &containers[i]; len(c.Ports) > 0 {
			out = append(out, v1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return out
}
