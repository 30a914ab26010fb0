package certificate

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

// What a node was bound to at its join is kept in a ConfigMap for each, which
// goes with the Node: administrators may change it, nodes may not even read it.
const (
	bindingPrefix = "node-addresses."
	bindingLabel  = "berth.dev/node-addresses"
	bindingKey    = "addresses"
)

// binding is what a node is bound to, nil for nothing, and the ConfigMap that says so.
type binding struct {
	host   *Host
	object *v1.ConfigMap
}

// bindings are what all nodes are bound to, by node.
func bindings(ctx context.Context, e controller.Env) (map[string]binding, error) {
	list, err := e.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: bindingLabel})
	if err != nil {
		return nil, fmt.Errorf("reading what nodes are bound to: %w", err)
	}
	out := map[string]binding{}
	for i := range list.Items {
		m := &list.Items[i]
		node := m.Name[min(len(bindingPrefix), len(m.Name)):]
		out[node] = binding{hostOf(node, m.Data[bindingKey]), m}
	}
	return out, nil
}

// situation is what decides about a serving request: the node, what it is bound
// to, and what others have.
func situation(ctx context.Context, e controller.Env, name string) (node *v1.Node, bound binding, others []Host, err error) {
	list, err := e.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, binding{}, nil, fmt.Errorf("reading the nodes: %w", err)
	}
	all, err := bindings(ctx, e)
	if err != nil {
		return nil, binding{}, nil, err
	}
	for i := range list.Items {
		n := &list.Items[i]
		if n.Name == name {
			node = n
			continue
		}
		others = append(others, held(claimed(n), all[n.Name].host))
	}
	return node, all[name], others, nil
}

// bind adds what was asked for to what a node is bound to. The write holds only
// for the ConfigMap that the decision was based on: one that changed since
// makes a conflict, and the request is decided again.
func bind(ctx context.Context, e controller.Env, node *v1.Node, bound binding, asked Host) error {
	maps := e.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	var err error
	if had := bound.host; had != nil {
		asked.Names, asked.IPs = append(asked.Names, had.Names...), append(asked.IPs, had.IPs...)
		if asked.text() == had.text() {
			return nil
		}
	}
	data := map[string]string{bindingKey: asked.text()}
	owners := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	if bound.object == nil {
		_, err = maps.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bindingPrefix + node.Name,
			Namespace: metav1.NamespaceSystem, Labels: map[string]string{bindingLabel: "true"}, OwnerReferences: owners}, Data: data},
			metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = fmt.Errorf("%w: it appeared just now, so the request is judged again", err)
		}
	} else {
		_, err = kube.Patch(ctx, maps, bound.object, kube.Unchanged, kube.Change{Owners: &owners, Fields: map[string]any{"data": data}})
	}
	if err != nil {
		return fmt.Errorf("binding node %s to its addresses: %w", node.Name, err)
	}
	return nil
}

// aliveFor is how long a node counts as alive after its Lease was renewed, if
// the Lease does not say.
const aliveFor = 40 * time.Second

// aliveUntil is until when a node counts as alive; zero if it does not.
func aliveUntil(ctx context.Context, e controller.Env, name string, now time.Time) (time.Time, error) {
	if _, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return time.Time{}, nil
		}
		return time.Time{}, fmt.Errorf("reading node %s: %w", name, err)
	}
	lease, err := e.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the Lease of node %s: %w", name, err)
	}
	life := aliveFor
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		life = time.Duration(*s) * time.Second
	}
	if lease.Spec.RenewTime == nil || !now.Before(lease.Spec.RenewTime.Add(life)) {
		return time.Time{}, nil
	}
	return lease.Spec.RenewTime.Add(life), nil
}
