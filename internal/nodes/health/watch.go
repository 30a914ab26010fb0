package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/kube"
)

// watch feeds the Monitor with nodes and pods and returns once it knows
// everything there is of them.
func (s *shell) watch(ctx context.Context) (remove func(), err error) {
	podInf, nodeInf := s.Informers.Core().V1().Pods().Informer(), s.Informers.Core().V1().Nodes().Informer()
	s.pods, s.nodes = podInf.GetIndexer(), nodeInf.GetIndexer()
	remove = func() {}
	if err := kube.IndexPodsByNode(podInf); err != nil {
		return remove, err
	}
	nodes, err := nodeInf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.meetNode, UpdateFunc: s.seeNodeAgain, DeleteFunc: s.loseNode})
	if err != nil {
		return remove, fmt.Errorf("watching nodes: %w", err)
	}
	remove = func() { nodeInf.RemoveEventHandler(nodes) } //nolint:errcheck // the informer may be gone
	pods, err := podInf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.seePod, UpdateFunc: s.seePodAgain})
	if err != nil {
		return remove, fmt.Errorf("watching pods: %w", err)
	}
	remove = func() {
		podInf.RemoveEventHandler(pods)   //nolint:errcheck // the informer may be gone
		nodeInf.RemoveEventHandler(nodes) //nolint:errcheck // the informer may be gone
	}
	s.Informers.Start(ctx.Done())
	if !kube.Synced(ctx, nodes, pods) {
		return remove, ctx.Err()
	}
	return remove, nil
}

// watchLeases feeds the Monitor with the nodes' leases (leases of nodes not
// known yet would be lost: nodes come first), calls listed once it has told all
// there were, and starts a new watch whenever the present one was found stale.
func (s *shell) watchLeases(ctx context.Context, listed func()) {
	for ctx.Err() == nil {
		s.watchLeasesOnce(ctx, listed)
	}
}

func (s *shell) watchLeasesOnce(ctx context.Context, listed func()) {
	ctx, cancel := context.WithCancel(ctx)
	leases := informers.NewSharedInformerFactoryWithOptions(s.Leases, 0, informers.WithNamespace(v1.NamespaceNodeLease), informers.WithTransform(slim))
	defer leases.Shutdown()
	defer cancel() // before Shutdown, which waits for the watch to end
	seen := func(o any) { s.seeLease(o) }
	reg, err := leases.Coordination().V1().Leases().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }})
	if err != nil {
		s.Log.Error("watching node leases", "error", err) // a new informer takes any handler
		return
	}
	leases.Start(ctx.Done())
	if kube.Synced(ctx, reg) {
		listed()
	}
	select {
	case <-s.stale:
		s.Log.Warn("starting the watch of node leases anew")
	case <-ctx.Done():
	}
}

// slim drops what is not needed of a lease before it is kept.
func slim(o any) (any, error) {
	l, ok := o.(*coordination.Lease)
	if !ok {
		return o, nil
	}
	return &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: l.Name, Namespace: l.Namespace, UID: l.UID, ResourceVersion: l.ResourceVersion, ManagedFields: renewal(l)},
		Spec:       coordination.LeaseSpec{RenewTime: l.Spec.RenewTime, LeaseDurationSeconds: l.Spec.LeaseDurationSeconds},
	}, nil
}

// renewal is what the API server noted about the last write of the lease's
// renewTime, nothing if it keeps no such notes. Its time is the server's own.
func renewal(l *coordination.Lease) []metav1.ManagedFieldsEntry {
	var last []metav1.ManagedFieldsEntry
	for _, f := range l.ManagedFields {
		if f.Time == nil || f.FieldsV1 == nil || !bytes.Contains(f.FieldsV1.Raw, renewTimeField) {
			continue
		}
		if last == nil || last[0].Time.Before(f.Time) {
			last = []metav1.ManagedFieldsEntry{{Time: f.Time, FieldsV1: &metav1.FieldsV1{Raw: renewTimeField}}}
		}
	}
	return last
}

var renewTimeField = []byte(`"f:renewTime"`)

// meetNode greets a node that this process sees for the first time.
func (s *shell) meetNode(o any) {
	if n, ok := o.(*v1.Node); ok {
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "RegisteredNode", "Node "+n.Name+" event: Registered Node "+n.Name+" in Controller")
		s.seeNode(o)
	}
}

func (s *shell) seeNode(o any) {
	n, ok := o.(*v1.Node)
	if !ok {
		return
	}
	s.observe(Event{Kind: NodeSeen, Node: n.Name, View: ViewOf(n)})
	if _, changed := NoSchedule(n, metav1.Time{}); changed || Labels(n) != nil {
		s.rest.Add(n.Name)
	}
}

// seeNodeAgain: what follows from a node's being marked waits until it is.
func (s *shell) seeNodeAgain(old, o any) {
	was, ok := old.(*v1.Node)
	n, ok2 := o.(*v1.Node)
	if ok && ok2 && ViewOf(n).Ready == Unknown && ViewOf(was).Ready != Unknown {
		s.goOn(n.Name)
	}
	s.seeNode(o)
}

func (s *shell) loseNode(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if n, ok := o.(*v1.Node); ok {
		s.observe(Event{Kind: NodeGone, Node: n.Name})
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "RemovingNode", "Node "+n.Name+" event: Removing Node "+n.Name+" from Controller")
	}
}

func (s *shell) seeLease(o any) {
	if l, ok := o.(*coordination.Lease); ok && l.Spec.RenewTime != nil {
		version, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
		if err != nil {
			version = 0 // some API servers use other words: only the time counts then
		}
		e := Event{Kind: LeaseSeen, Node: l.Name, Renewed: l.Spec.RenewTime.Time, Version: version}
		if f := renewal(l); len(f) > 0 {
			e.Written = f[0].Time.Time
		}
		if d := l.Spec.LeaseDurationSeconds; d != nil {
			e.Lasts = time.Duration(*d) * time.Second
		}
		s.observe(e)
	}
}

// seePod catches a ready pod newly bound to a node that is not.
func (s *shell) seePod(o any) {
	p, ok := o.(*v1.Pod)
	if ok && p.Spec.NodeName != "" && readyAt(p) >= 0 && s.verdict(p.Spec.NodeName).PodsNotReady {
		s.unready.Add(p.Spec.NodeName)
	}
}

// seePodAgain: what a node that still talks says of its pods later is its own
// word and is left alone; a silent node says nothing that could be true.
func (s *shell) seePodAgain(old, o any) {
	was, ok := old.(*v1.Pod)
	p, ok2 := o.(*v1.Pod)
	if !ok || !ok2 || readyAt(p) < 0 {
		return
	}
	if v := s.verdict(p.Spec.NodeName); v.PodsNotReady && (v.Ready == Unknown || was.Spec.NodeName == "") {
		s.unready.Add(p.Spec.NodeName)
	}
}

// confirm lists the leases from the API itself. What it finds is observed
// first, so a renewal that a dead watch kept back still counts.
func (s *shell) confirm(ctx context.Context) {
	began := time.Now()
	limit := 2*s.Settings.Slow + time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("no answer within "+limit.String()))
	defer cancel()
	answer := Event{Kind: Confirmed}
	list := metav1.ListOptions{Limit: 5000}
	for {
		leases, err := s.Leases.CoordinationV1().Leases(v1.NamespaceNodeLease).List(ctx, list)
		if err != nil {
			answer.Err = fmt.Sprintf("listing node leases: %v", err)
			if cause := context.Cause(ctx); cause != nil {
				answer.Err = fmt.Sprintf("listing node leases: %v", cause)
			}
			break
		}
		for i := range leases.Items {
			s.seeLease(&leases.Items[i])
		}
		if list.Continue = leases.Continue; list.Continue == "" {
			break
		}
	}
	answer.Took = time.Since(began)
	s.observe(answer)
}
