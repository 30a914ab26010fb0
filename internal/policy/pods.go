package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/policy/model"
)

// patience bounds how long a container's start waits for its pod's rules.
const patience = 5 * time.Second

// early is what the node knows of a pod of its own before the API does.
type early struct {
	uid types.UID
	ips []string
}

// Guard returns once the rules of a pod with these addresses are in the
// kernel, so that no container of it ever runs without them. The agent calls
// it before it starts a container.
func (e *Enforcer) Guard(ctx context.Context, p *corev1.Pod, ips []string) error {
	if p.Spec.HostNetwork || len(ips) == 0 {
		return nil
	}
	key := model.Key{Namespace: p.Namespace, Name: p.Name}
	e.mu.Lock()
	e.early[key] = early{p.UID, ips}
	e.mu.Unlock()
	done := make(chan bool, 1)
	e.push(event{func(m *model.Model) { e.reportTo(m, e.newest(p)) }, key, done})
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case selected := <-done:
		return e.enforceable(key, selected, ips)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the network policy rules of pod %s (%v): %w", key, ips, ctx.Err())
	}
}

// enforceable refuses to start a pod that a policy selects where the kernel
// would let packets pass it by. The agent asks again.
func (e *Enforcer) enforceable(key model.Key, selected bool, ips []string) error {
	if !selected || !e.cfg.Bridge {
		return nil
	}
	v6 := slices.ContainsFunc(ips, func(ip string) bool { return strings.Contains(ip, ":") })
	v4 := slices.ContainsFunc(ips, func(ip string) bool { return !strings.Contains(ip, ":") })
	if err := seeBridges(e.cfg.settings, v4, v6); err != nil {
		return fmt.Errorf("pod %s is selected by a NetworkPolicy that node %s cannot enforce, so it does not start: %w", key,
			e.cfg.NodeName, err)
	}
	return nil
}

// newest is the pod as last watched: the caller's may be older.
func (e *Enforcer) newest(p *corev1.Pod) *corev1.Pod {
	seen, err := e.cfg.Informers.Core().V1().Pods().Lister().Pods(p.Namespace).Get(p.Name)
	if err != nil || seen.UID != p.UID {
		return p
	}
	return seen
}

// reportTo gives a pod to the model, or takes it away if it is no one's peer.
func (e *Enforcer) reportTo(m *model.Model, p *corev1.Pod) {
	out, ok := e.pod(p)
	if !ok {
		m.DeletePod(model.Key{Namespace: p.Namespace, Name: p.Name})
		return
	}
	m.SetPod(out)
}

// pod is what policies see of a pod; none is seen of pods of the host's
// network, of finished ones and of those without an address.
func (e *Enforcer) pod(p *corev1.Pod) (model.Pod, bool) {
	out := model.Pod{Key: model.Key{Namespace: p.Namespace, Name: p.Name}, Labels: p.Labels, Local: p.Spec.NodeName == e.cfg.NodeName,
		Leaving: p.DeletionTimestamp != nil, Created: p.CreationTimestamp.UnixNano()}
	if p.Spec.HostNetwork || podutil.Terminal(p) {
		return out, false
	}
	e.mu.Lock()
	known := e.early[out.Key]
	e.mu.Unlock()
	var texts []string
	switch {
	case out.Local && known.uid == p.UID && len(known.ips) > 0:
		texts = known.ips
	case len(p.Status.PodIPs) > 0:
		for _, ip := range p.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
	default:
		texts = []string{p.Status.PodIP}
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			out.IPs = append(out.IPs, ip.Unmap())
		}
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.Ports = addPorts(out.Ports, c.Ports)
		}
	}
	for _, c := range p.Spec.Containers {
		out.Ports = addPorts(out.Ports, c.Ports)
	}
	return out, len(out.IPs) > 0
}

func addPorts(to []model.PodPort, ports []corev1.ContainerPort) []model.PodPort {
	for _, p := range ports {
		proto, err := model.ProtoNumber(p.Protocol)
		if p.Name == "" || err != nil {
			continue
		}
		to = append(to, model.PodPort{Name: model.Name{Name: p.Name, Proto: proto}, Value: uint16(p.ContainerPort)})
	}
	return to
}

// watch registers the handlers; stop takes them away again.
func (e *Enforcer) watch() (synced []cache.DoneChecker, stop func(), err error) {
	var regs []func()
	stop = func() {
		for _, f := range regs {
			f()
		}
	}
	add := func(inf cache.SharedIndexInformer, set func(old, o any), del func(o any)) {
		reg, e := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { set(nil, o) }, UpdateFunc: set,
			DeleteFunc: func(o any) {
				if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = t.Obj
				}
				del(o)
			}})
		if e != nil {
			err = errors.Join(err, fmt.Errorf("watching for network policies: %w", e))
			return
		}
		regs = append(regs, func() { _ = inf.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSyncedChecker())
	}
	core := e.cfg.Informers.Core().V1()
	add(core.Pods().Informer(), e.setPod, e.deletePod)
	add(core.Namespaces().Informer(), func(_, o any) {
		if n, ok := o.(*corev1.Namespace); ok {
			e.push(event{change: func(m *model.Model) { m.SetNamespace(n.Name, n.Labels) }})
		}
	}, func(o any) {
		if n, ok := o.(*corev1.Namespace); ok {
			e.push(event{change: func(m *model.Model) { m.DeleteNamespace(n.Name) }})
		}
	})
	add(e.cfg.Informers.Networking().V1().NetworkPolicies().Informer(), func(old, o any) {
		np, ok := o.(*networkingv1.NetworkPolicy)
		if was, _ := old.(*networkingv1.NetworkPolicy); !ok || was != nil && reflect.DeepEqual(was.Spec, np.Spec) {
			return
		}
		e.push(event{change: func(m *model.Model) { m.SetPolicy(np) }})
	}, func(o any) {
		if np, ok := o.(*networkingv1.NetworkPolicy); ok {
			e.push(event{change: func(m *model.Model) { m.DeletePolicy(model.Key{Namespace: np.Namespace, Name: np.Name}) }})
		}
	})
	return synced, stop, err
}

func (e *Enforcer) setPod(old, o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	if was, _ := old.(*corev1.Pod); was != nil {
		// Most updates change nothing that policies see.
		before, had := e.pod(was)
		after, has := e.pod(p)
		if had == has && reflect.DeepEqual(before, after) {
			return
		}
	}
	e.push(event{change: func(m *model.Model) { e.reportTo(m, p) }})
}

func (e *Enforcer) deletePod(o any) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	key := model.Key{Namespace: p.Namespace, Name: p.Name}
	e.mu.Lock()
	if e.early[key].uid == p.UID {
		delete(e.early, key)
	}
	e.mu.Unlock()
	e.push(event{change: func(m *model.Model) { m.DeletePod(key) }})
}
