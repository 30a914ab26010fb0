package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
)

// Publisher keeps the Service that pods are told of, and its endpoints.
type Publisher struct {
	// ClusterIP is the Service's address.
	ClusterIP net.IP
	// Machine and Own are the name of this host and where its own server
	// answers: asked while no node does.
	Host string
	Own  netip.AddrPort
}

// Controller declares the publisher; its rights are in Namespace.
func (p Publisher) Controller() controller.Controller {
	return controller.Controller{Name: "dns-publisher", Account: "dns-publisher", Watches: "nodes",
		Reads:  "get services = " + ServiceName + "\nlist endpointslices.discovery.k8s.io",
		Writes: "create services\npatch services = " + ServiceName + "\ncreate,delete,patch endpointslices.discovery.k8s.io", Run: p.Run}
}

// allSlices is the one key of the publisher's queue.
const allSlices = "endpoint slices"

// Run publishes until ctx ends. An error means that the Service cannot be had;
// Run may be called again.
func (p Publisher) Run(ctx context.Context, e controller.Env) error {
	if (p.ClusterIP.To4() != nil) != p.Own.Addr().Is4() || !p.Own.IsValid() || p.Own.Port() == 0 {
		return fmt.Errorf("publishing cluster DNS: service address %s and server %s are not an address and an address with a port of "+
			"one family", p.ClusterIP, p.Own)
	}
	if err := e.Check(); err != nil {
		return err
	}
	if err := publish(ctx, e.Client, p.ClusterIP); err != nil {
		return err
	}
	q, nodes := controller.NewQueue(), e.Informers.Core().V1().Nodes()
	q.Add(allSlices) // also without a node
	seen, err := controller.On(ctx, nodes.Informer(), func(old, now *v1.Node, gone bool) {
		if old == nil || gone || old.Annotations[Annotation] != now.Annotations[Annotation] ||
			podutil.NodeReady(old) != podutil.NodeReady(now) ||
			!equality.Semantic.DeepEqual(old.Status.Addresses, now.Status.Addresses) {
			q.Add(allSlices)
		}
	})
	if err != nil {
		return fmt.Errorf("watching nodes for DNS: %w", err)
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, 1, func(ctx context.Context, _ string) (time.Duration, error) {
		list, err := nodes.Lister().List(kubelabels.Everything())
		if err != nil {
			return 0, fmt.Errorf("listing nodes: %w", err)
		}
		return 0, p.ensure(ctx, e.Client, endpointsOf(list, p.Host, p.Own))
	})
}

// ensure makes the slices that are there those that are wanted.
func (p Publisher) ensure(ctx context.Context, client kubernetes.Interface, want []*discovery.EndpointSlice) error {
	api := client.DiscoveryV1().EndpointSlices(Namespace)
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
		if err := put(ctx, api, h, w); err != nil {
			errs = append(errs, fmt.Errorf("publishing endpoints %s/%s: %w", Namespace, w.Name, err))
		}
	}
	for name, h := range held {
		if !abandoned(h, p.Host) {
			continue
		}
		if err := api.Delete(ctx, name, kube.SameUID(h)); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("removing endpoints %s/%s: %w", Namespace, name, err))
		}
	}
	return errors.Join(errs...)
}

func put(ctx context.Context, api discoveryv1.EndpointSliceInterface, have, want *discovery.EndpointSlice) error {
	if have != nil && have.AddressType != want.AddressType {
		// The family of a slice cannot change.
		if err := api.Delete(ctx, have.Name, kube.SameUID(have)); err != nil && !apierrors.IsNotFound(err) {
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
	_, err := kube.Patch(ctx, api, have, kube.SameObject, kube.Change{Labels: kube.Texts(want.Labels), Manager: manager,
		Fields: map[string]any{"endpoints": want.Endpoints, "ports": want.Ports}})
	return err
}

// Advertise keeps the annotation of a node that says where its DNS answers,
// until ctx ends, or an error does. The Node may come later.
func Advertise(ctx context.Context, client kubernetes.Interface, shared informers.SharedInformerFactory, node string,
	at netip.AddrPort) error {
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
func follow(ctx context.Context, shared informers.SharedInformerFactory, inf cache.SharedIndexInformer,
	matters func(old, now *v1.Node) bool, act func() error) error {
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
