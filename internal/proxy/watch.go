package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// watch registers the handlers; stop takes them away again.
func (r *runner) watch(ctx context.Context) (synced []cache.DoneChecker, stop func(), err error) {
	var regs []func()
	stop = func() {
		for _, f := range regs {
			f()
		}
	}
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandlerFuncs) {
		reg, e := inf.AddEventHandler(h)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("watching for the proxy: %w", e))
			return
		}
		regs = append(regs, func() { _ = inf.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSyncedChecker())
	}
	add(r.cfg.Informers.Core().V1().Services().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { r.setService(nil, o) }, UpdateFunc: r.setService,
		DeleteFunc: func(o any) {
			if s, ok := gone(o).(*corev1.Service); ok {
				r.push(serviceChange, func(w *writer) { w.model.DeleteService(model.Name{Namespace: s.Namespace, Name: s.Name}) })
			}
		}})
	add(r.cfg.Informers.Discovery().V1().EndpointSlices().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { r.setSlice(nil, o) }, UpdateFunc: r.setSlice,
		DeleteFunc: func(o any) {
			if s, ok := gone(o).(*discoveryv1.EndpointSlice); ok {
				r.push(endpointChange, func(w *writer) { w.model.DeleteSlice(s) })
			}
		}})
	nodes := r.cfg.Nodes
	if nodes == nil {
		nodes = r.cfg.Informers.Core().V1().Nodes().Informer()
	}
	add(nodes, cache.ResourceEventHandlerFuncs{
		AddFunc: r.setNode, UpdateFunc: func(_, o any) { r.setNode(o) },
		DeleteFunc: func(o any) {
			if n, ok := gone(o).(*corev1.Node); ok && n.Name == r.cfg.NodeName {
				r.mu.Lock()
				r.node = nil
				r.mu.Unlock()
			}
		}})
	if r.servesServiceCIDRs() {
		inf := r.cfg.Informers.Networking().V1().ServiceCIDRs()
		reported := func(any) { r.setServiceCIDRs(inf.Informer().GetStore()) }
		add(inf.Informer(), cache.ResourceEventHandlerFuncs{AddFunc: reported, UpdateFunc: func(_, o any) { reported(o) },
			DeleteFunc: reported})
	}
	if err == nil {
		err = r.watchAddresses(ctx)
	}
	return synced, stop, err
}

// servesServiceCIDRs says whether the API server knows ServiceCIDRs, which
// are there since Kubernetes 1.33.
func (r *runner) servesServiceCIDRs() bool {
	list, err := r.cfg.Client.Discovery().ServerResourcesForGroupVersion(networkingv1.SchemeGroupVersion.String())
	if err != nil {
		r.cfg.Log.Warn("addresses that no Service has are not dropped: cannot learn whether the API server has ServiceCIDRs", "err", err)
		return false
	}
	for _, res := range list.APIResources {
		if res.Name == "servicecidrs" {
			return true
		}
	}
	return false
}

func (r *runner) setServiceCIDRs(store cache.Store) {
	var cidrs []netip.Prefix
	for _, o := range store.List() {
		s, ok := o.(*networkingv1.ServiceCIDR)
		if !ok || s.DeletionTimestamp != nil {
			continue
		}
		for _, c := range s.Spec.CIDRs {
			if p, err := netip.ParsePrefix(c); err == nil {
				cidrs = append(cidrs, p.Masked())
			}
		}
	}
	slices.SortFunc(cidrs, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	cidrs = slices.Compact(cidrs)
	r.push(otherChange, func(w *writer) { w.setCIDRs(cidrs) })
}

func (r *runner) setService(old, o any) {
	s, ok := o.(*corev1.Service)
	was, _ := old.(*corev1.Service)
	if !ok || was != nil && was.ResourceVersion == s.ResourceVersion {
		return // a resync
	}
	r.push(serviceChange, func(w *writer) { w.model.SetService(s) })
}

func (r *runner) setSlice(old, o any) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	was, _ := old.(*discoveryv1.EndpointSlice)
	if !ok || was != nil && was.ResourceVersion == s.ResourceVersion {
		return
	}
	r.push(endpointChange, func(w *writer) {
		if was != nil && was.Labels[discoveryv1.LabelServiceName] != s.Labels[discoveryv1.LabelServiceName] {
			w.model.DeleteSlice(was)
		}
		w.model.SetSlice(s)
	})
}

func (r *runner) setNode(o any) {
	n, ok := o.(*corev1.Node)
	if !ok || n.Name != r.cfg.NodeName {
		return
	}
	r.mu.Lock()
	r.node = n
	if len(n.Spec.PodCIDRs) > 0 {
		if r.cidrs == nil {
			r.cidrs = n.Spec.PodCIDRs
			close(r.nodeSeen)
		} else if r.cfg.Config.DetectLocalMode == "NodeCIDR" && !slices.Equal(r.cidrs, n.Spec.PodCIDRs) {
			// Every rule that tells local traffic would be wrong: start again.
			r.fail(fmt.Errorf("spec.podCIDRs of node %s changed from %v to %v: the proxy must be started again", n.Name, r.cidrs,
				n.Spec.PodCIDRs))
		}
	}
	r.mu.Unlock()
	zone, ips := n.Labels[corev1.LabelTopologyZone], r.nodeIPs(n)
	r.push(otherChange, func(w *writer) { w.model.SetNode(zone, ips) })
	r.setNodePortAddrs(ips)
}

// setNodePortAddrs has the loop look at the addresses node ports answer on.
func (r *runner) setNodePortAddrs(nodeIPs []netip.Addr) {
	r.push(otherChange, func(w *writer) { w.model.SetNodePortAddrs(r.nodePortAddrs(nodeIPs)) })
	r.ask(func() { r.checks.rebind(r.nodePortAddrs(nodeIPs)) })
}

// nodeIPs are the addresses the Node says it has, but for families in which
// bindAddress names another.
func (r *runner) nodeIPs(n *corev1.Node) []netip.Addr {
	bind, err := netip.ParseAddr(r.cfg.Config.BindAddress)
	given := err == nil && !bind.IsUnspecified()
	var ips []netip.Addr
	if given {
		ips = append(ips, bind.Unmap())
	}
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err == nil && a.Type == t && !(given && ip.Unmap().Is4() == bind.Unmap().Is4()) {
				ips = append(ips, ip.Unmap())
			}
		}
	}
	return ips
}

// primaryOnly says that node ports answer on the node's own addresses only.
func (cfg *Config) primaryOnly() bool {
	c := cfg.Config.NodePortAddresses
	return len(c) == 0 || slices.Equal(c, []string{kubeProxyPrimary})
}

// kubeProxyPrimary is the word for the node's own addresses.
const kubeProxyPrimary = "primary"

// nodePortAddrs are the addresses node ports answer on: the node's own, or
// those of this host within the configured CIDRs.
func (r *runner) nodePortAddrs(nodeIPs []netip.Addr) []netip.Addr {
	if r.cfg.primaryOnly() {
		return nodeIPs
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		r.cfg.Log.Error("reading this machine's addresses for node ports", "err", err)
		return nodeIPs
	}
	var out []netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		for _, c := range r.cfg.Config.NodePortAddresses {
			if n, err := netip.ParsePrefix(c); err == nil && n.Contains(p.Addr().Unmap()) {
				out = append(out, p.Addr().Unmap())
				break
			}
		}
	}
	return out
}

// watchAddresses follows the host's addresses where node ports answer on
// those within CIDRs.
func (r *runner) watchAddresses(ctx context.Context) error {
	if r.cfg.primaryOnly() {
		return nil
	}
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("watching this machine's addresses for node ports: %w", err)
	}
	r.setNodePortAddrs(nil)
	go func() {
		for range updates {
			r.setNodePortAddrs(nil)
		}
	}()
	return nil
}

func gone(o any) any {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return o
}
