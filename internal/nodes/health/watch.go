package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/podutil"
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
		AddFunc: s.onNodeAdd, UpdateFunc: s.onNodeUpdate, DeleteFunc: s.onNodeDelete})
	if err != nil {
		return remove, fmt.Errorf("watching nodes: %w", err)
	}
	remove = func() { nodeInf.RemoveEventHandler(nodes) } //nolint:errcheck // the informer may be gone
	pods, err := podInf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.onPodAdd, UpdateFunc: s.onPodUpdate})
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
	leases := s.leaseInformer()
	seen := func(o any) { s.observeLease(o) }
	reg, err := leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }})
	if err != nil {
		cancel()
		s.Log.Error("watching node leases", "err", err) // a new informer takes any handler
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { leases.RunWithContext(ctx) })
	defer wg.Wait()
	defer cancel() // before Wait
	if kube.Synced(ctx, reg) {
		listed()
	}
	select {
	case <-s.stale:
		s.Log.Warn("starting the watch of node leases again")
	case <-ctx.Done():
	}
}

// leaseInformer reads the nodes' leases, and lets the Monitor know when the API
// does not answer.
func (s *shell) leaseInformer() cache.SharedIndexInformer {
	api := s.Leases.CoordinationV1().Leases(v1.NamespaceNodeLease)
	noting := func(ctx context.Context, err error) {
		if err != nil && ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			s.observe(Event{Kind: Unanswered})
		}
	}
	read := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			l, err := api.List(ctx, opts)
			noting(ctx, err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := api.Watch(ctx, opts)
			noting(ctx, err)
			return w, err
		},
	}
	inf := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(read, s.Leases), &coordination.Lease{}, 0,
		cache.Indexers{})
	if err := inf.SetTransform(trimLease); err != nil {
		s.Log.Error("watching node leases", "err", err) // an informer that does not run takes any
	}
	return inf
}

// trimLease drops the parts of a lease that are not needed, before it is cached.
func trimLease(o any) (any, error) {
	l, ok := o.(*coordination.Lease)
	if !ok {
		return o, nil
	}
	return &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: l.Name, Namespace: l.Namespace, UID: l.UID, ResourceVersion: l.ResourceVersion,
			ManagedFields: renewal(l)},
		Spec: coordination.LeaseSpec{RenewTime: l.Spec.RenewTime, LeaseDurationSeconds: l.Spec.LeaseDurationSeconds},
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

// onNodeAdd takes in a node that this process sees for the first time.
func (s *shell) onNodeAdd(o any) {
	if n, ok := o.(*v1.Node); ok {
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "RegisteredNode", "Node "+n.Name+" event: Registered Node "+n.Name+
			" in Controller")
		s.onNodeUpdate(nil, o)
	}
}

func (s *shell) onNodeUpdate(_, o any) {
	s.observeNode(o)
	if n, ok := o.(*v1.Node); ok {
		s.fresh.shown(n)
	}
}

// observeNode takes in a node; an event that comes late does not undo what is known.
func (s *shell) observeNode(o any) {
	n, ok := o.(*v1.Node)
	if !ok {
		return
	}
	n = s.fresh.newest(n)
	s.observe(Event{Kind: NodeSeen, Node: n.Name, View: ViewOf(n), Version: version(n.ResourceVersion)})
	if _, changed := NoSchedule(n, metav1.Time{}); changed || labels(n) != nil {
		s.rest.Add(n.Name)
	}
}

func (s *shell) onNodeDelete(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if n, ok := o.(*v1.Node); ok {
		s.fresh.gone(n)
		s.observe(Event{Kind: NodeGone, Node: n.Name})
		s.event(nodeRef(n.Name, n.UID), v1.EventTypeNormal, "RemovingNode", "Node "+n.Name+" event: Removing Node "+n.Name+
			" from Controller")
	}
}

func (s *shell) observeLease(o any) {
	if l, ok := o.(*coordination.Lease); ok && l.Spec.RenewTime != nil {
		e := Event{Kind: LeaseSeen, Node: l.Name, Renewed: l.Spec.RenewTime.Time, Version: version(l.ResourceVersion)}
		if f := renewal(l); len(f) > 0 {
			e.Written = f[0].Time.Time
		}
		if d := l.Spec.LeaseDurationSeconds; d != nil {
			e.Lasts = time.Duration(*d) * time.Second
		}
		s.observe(e)
	}
}

// version is a resourceVersion as a number, 0 if it is none: some API servers
// use other words.
func version(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// onPodAdd catches a ready pod newly bound to a node that is not ready.
func (s *shell) onPodAdd(o any) {
	p, ok := o.(*v1.Pod)
	if ok && p.Spec.NodeName != "" && podutil.Ready(p) && s.verdict(p.Spec.NodeName).MarksPod(p) {
		s.unready.Add(p.Spec.NodeName)
	}
}

// onPodUpdate catches a pod that became ready on a node that is not.
func (s *shell) onPodUpdate(old, o any) {
	was, ok := old.(*v1.Pod)
	p, ok2 := o.(*v1.Pod)
	if ok && ok2 && podutil.Ready(p) && s.verdict(p.Spec.NodeName).MarksUpdatedPod(was, p) {
		s.unready.Add(p.Spec.NodeName)
	}
}

// confirm lists the leases from the API itself. What it finds is observed
// first, so a renewal that a dead watch kept back still counts.
func (s *shell) confirm(ctx context.Context) {
	began := time.Now()
	limit := 2*s.Settings.ConfirmTimeout + time.Second
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
			s.observeLease(&leases.Items[i])
		}
		if list.Continue = leases.Continue; list.Continue == "" {
			break
		}
	}
	answer.Took = time.Since(began)
	s.observe(answer)
}
