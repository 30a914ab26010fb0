package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// watch feeds the records from the shared informers. The functions it returns
// say when all that existed has been seen; undo stops the feed.
func watch(f informers.SharedInformerFactory, pods bool, k *known) (undo func(), synced []cache.DoneChecker, err error) {
	var undos []func()
	undo = func() {
		for _, u := range undos {
			u()
		}
	}
	add := func(kind string, inf cache.SharedIndexInformer, h cache.ResourceEventHandlerFuncs) error {
		reg, err := inf.AddEventHandler(h)
		if err != nil {
			return fmt.Errorf("watching %s for DNS: %w", kind, err)
		}
		undos = append(undos, func() { inf.RemoveEventHandler(reg) }) //nolint:errcheck // the informer may be gone
		synced = append(synced, reg.HasSyncedChecker())
		return nil
	}
	err = errors.Join(
		add("services", f.Core().V1().Services().Informer(), feed(k, (*records).SetService, (*records).DeleteService)),
		add("endpoint slices", f.Discovery().V1().EndpointSlices().Informer(), feed(k, (*records).SetSlice, (*records).DeleteSlice)))
	if err == nil && pods {
		err = add("pods", f.Core().V1().Pods().Informer(), feed(k, (*records).SetPod, (*records).DeletePod))
	}
	if err != nil {
		undo()
		return nil, nil, err
	}
	return undo, synced, nil
}

// nodeAddresses says whether an address is that of a node: pods that ask
// another node's server are hidden behind their own. It looks through all
// nodes, which only questions from outside the pod CIDRs need.
func nodeAddresses(f informers.SharedInformerFactory) func(netip.Addr) bool {
	nodes := f.Core().V1().Nodes().Lister()
	return func(ip netip.Addr) bool {
		all, err := nodes.List(kubelabels.Everything())
		return err == nil && slices.ContainsFunc(all, func(n *v1.Node) bool { return has(n, ip) })
	}
}

// feed turns informer events into changes of the records.
func feed[T interface {
	*v1.Service | *discovery.EndpointSlice | *v1.Pod
	metav1.Object
}](k *known, set func(*records, T), remove func(r *records, namespace, name string)) cache.ResourceEventHandlerFuncs {
	apply := func(obj any) {
		if o, ok := obj.(T); ok {
			k.change(func(r *records) { set(r, o) })
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: apply,
		UpdateFunc: func(old, obj any) {
			// A resync brings the object that is known already.
			if o, ok := old.(T); ok && o.GetResourceVersion() != "" && o.GetResourceVersion() == obj.(T).GetResourceVersion() {
				return
			}
			apply(obj)
		},
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			if o, ok := obj.(T); ok {
				k.change(func(r *records) { remove(r, o.GetNamespace(), o.GetName()) })
			}
		},
	}
}
