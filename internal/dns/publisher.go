package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Publisher keeps the Service that pods are told of, and its endpoints.
type Publisher struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// ClusterIP is the Service's address.
	ClusterIP net.IP
	// Host and Own are the name of this host and where its own server
	// answers: asked while no node does.
	Host string
	Own  netip.AddrPort
}

// Run publishes until ctx ends, or an error does; then it may be run again.
func (p Publisher) Run(ctx context.Context) error {
	if (p.ClusterIP.To4() != nil) != p.Own.Addr().Is4() || !p.Own.IsValid() || p.Own.Port() == 0 {
		return fmt.Errorf("publishing cluster DNS: service address %s and server %s are not an address and an address with a port of one family", p.ClusterIP, p.Own)
	}
	if err := Publish(ctx, p.Client, p.ClusterIP); err != nil {
		return err
	}
	nodes := p.Informers.Core().V1().Nodes()
	return follow(ctx, p.Informers, nodes.Informer(), func(old, now *v1.Node) bool {
		return old == nil || now == nil || old.Annotations[Annotation] != now.Annotations[Annotation] || ready(old) != ready(now) ||
			!equality.Semantic.DeepEqual(old.Status.Addresses, now.Status.Addresses)
	}, func() error {
		list, err := nodes.Lister().List(kubelabels.Everything())
		if err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		return p.ensure(ctx, endpointsOf(list, p.Host, p.Own))
	})
}

// ensure makes the slices that are there those that are wanted.
func (p Publisher) ensure(ctx context.Context, want []*discovery.EndpointSlice) error {
	api := p.Client.DiscoveryV1().EndpointSlices(Namespace)
	have, err := api.List(ctx, metav1.ListOptions{LabelSelector: discovery.LabelManagedBy + "=" + manager})
	if err != nil {
		return fmt.Errorf("listing the endpoints of cluster DNS: %w", err)
	}
	held := map[string]*discovery.EndpointSlice{}
	for i := range have.Items {
		held[have.Items[i].Name] = &have.Items[i]
	}
	var errs []error
	for _, w := range want {
		h := held[w.Name]
		delete(held, w.Name)
		if err := p.put(ctx, h, w); err != nil {
			errs = append(errs, fmt.Errorf("publishing endpoints %s/%s: %w", Namespace, w.Name, err))
		}
	}
	for name, h := range held {
		if !abandoned(h, p.Host) {
			continue
		}
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("removing endpoints %s/%s: %w", Namespace, name, err))
		}
	}
	return errors.Join(errs...)
}

func (p Publisher) put(ctx context.Context, have, want *discovery.EndpointSlice) error {
	api := p.Client.DiscoveryV1().EndpointSlices(Namespace)
	if have != nil && have.AddressType != want.AddressType {
		// The family of a slice cannot change.
		if err := api.Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		have = nil
	}
	if have == nil {
		_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: manager})
		return err
	}
	if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels}, "endpoints": want.Endpoints, "ports": want.Ports})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	_, err = api.Patch(ctx, want.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager})
	return err
}

// Advertise keeps the annotation of a node that says where its DNS answers,
// until ctx ends, or an error does. The Node may come later.
func Advertise(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory, node string, at netip.AddrPort) error {
	nodes := shared.Core().V1().Nodes()
	return follow(ctx, shared, nodes.Informer(), func(_, now *v1.Node) bool {
		return now != nil && now.Name == node && now.Annotations[Annotation] != at.String()
	}, func() error {
		n, err := nodes.Lister().Get(node)
		if apierrors.IsNotFound(err) || err == nil && n.Annotations[Annotation] == at.String() {
			return nil
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{Annotation: at.String()}}})
		if err != nil {
			return fmt.Errorf("encoding the annotation: %w", err)
		}
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("telling where the DNS of node %s answers: %w", node, err)
		}
		return nil
	})
}

// follow calls act once all nodes are known and after every change that
// matters; old or now is nil when a node comes or goes.
func follow(ctx context.Context, shared informers.SharedInformerFactory, inf cache.SharedIndexInformer, matters func(old, now *v1.Node) bool, act func() error) error {
	wake := make(chan struct{}, 1)
	tell := func(old, now any) {
		was, _ := old.(*v1.Node)
		is, _ := now.(*v1.Node)
		if !matters(was, is) {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { tell(nil, o) }, UpdateFunc: tell, DeleteFunc: func(o any) { tell(o, nil) },
	})
	if err != nil {
		return fmt.Errorf("watching nodes for DNS: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	shared.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return nil
	}
	for {
		if err := act(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
	}
}
