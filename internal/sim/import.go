package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/control/workload/statefulset"
	"github.com/berth-dev/berth/internal/podutil"
)

// snapshot is a live cluster as it was found.
type snapshot struct {
	nodes []*v1.Node
	pods  []*v1.Pod
}

// Import makes a scenario of ParseEvents play on a live cluster: its nodes with
// their labels, taints and room, and its pods where they are. Owners are read
// off the pods: those of a ReplicaSet, and of every kind that is not known
// here, are kept like a Deployment's, as many as there are. Volumes are left
// out of placement. Nodes that are not Ready start cut off.
func (sc *Scenario) Import(nodes []*v1.Node, pods []*v1.Pod) (*Scenario, error) {
	if len(nodes) == 0 {
		return nil, errors.New("importing a cluster: it has no nodes")
	}
	out := *sc
	out.live = &snapshot{nodes: nodes, pods: pods}
	return &out, nil
}

// load builds the world of a snapshot.
func (s *snapshot) load(w *simulation) error {
	for _, o := range s.nodes {
		w.loadNode(o)
	}
	sets := map[string]*workload{}
	for _, o := range s.pods {
		if !podutil.Active(o) {
			continue
		}
		key, kind, name := ownerOf(o)
		set := sets[key]
		if set == nil {
			set = w.loadWorkload(kind, o.Namespace+"/"+name, o)
			sets[key] = set
		}
		if err := w.loadPod(set, o); err != nil {
			return err
		}
	}
	for _, n := range w.nodes {
		w.scheduler.snap.SetNode(n.obj)
		w.refreshNode(n)
	}
	for _, set := range w.sets {
		set.adopt()
		if set.ds == nil {
			continue
		}
		for _, p := range set.pods {
			if p.node != nil {
				set.on[p.node] = p
			}
		}
	}
	return nil
}

// loadNode takes a node over, as it says it is.
func (w *simulation) loadNode(o *v1.Node) {
	ready := v1.ConditionUnknown
	for _, c := range o.Status.Conditions {
		if c.Type == v1.NodeReady {
			ready = c.Status
		}
	}
	copied := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: o.Labels}, Spec: *o.Spec.DeepCopy(),
		Status: v1.NodeStatus{Allocatable: o.Status.Allocatable}}
	w.addNode(copied)
	n := w.byName[o.Name]
	if ready != v1.ConditionTrue {
		n.Cut, n.silent = 1, 0
		n.obj.Status.Conditions = conditions(ready, clustermodel.Epoch, nil)
	}
}

// ownerOf is what keeps a pod: a key, the kind as simulated, and a name.
func ownerOf(o *v1.Pod) (key, kind, name string) {
	ref := metav1.GetControllerOf(o)
	switch {
	case ref == nil || ref.Kind == "Node":
		return string(o.UID), kindPods, o.Name
	case ref.Kind == kindStatefulSet || ref.Kind == kindDaemonSet:
		return string(ref.UID), ref.Kind, ref.Name
	}
	return string(ref.UID), kindDeployment, ref.Name
}

func (w *simulation) loadWorkload(kind, name string, first *v1.Pod) *workload {
	spec := &workloadSpec{Name: name, Kind: kind}
	if first.Spec.Priority != nil {
		spec.Priority = *first.Spec.Priority
	}
	template := *first.Spec.DeepCopy()
	template.NodeName, template.Volumes = "", nil
	if kind == kindDaemonSet && template.Affinity != nil {
		template.Affinity.NodeAffinity = nil // its own node; every pod gets its own
	}
	if kind == kindStatefulSet {
		_, name, _ = strings.Cut(name, "/")
	}
	s := &workload{w: w, name: name, spec: spec, class: spec.Name + "/" + kind, podSpec: template,
		template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: first.Labels}, Spec: template}}
	s.template.Spec.Tolerations = slices.DeleteFunc(slices.Clone(template.Tolerations), func(t v1.Toleration) bool {
		return t.TolerationSeconds != nil && (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable)
	})
	s.adopt()
	w.sets = append(w.sets, s)
	return s
}

// loadPod puts a pod where it was found.
func (w *simulation) loadPod(s *workload, o *v1.Pod) error {
	p := &pod{set: s, obj: v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, OwnerReferences: s.owner},
		Spec:       *o.Spec.DeepCopy(), Status: v1.PodStatus{Phase: o.Status.Phase}}}
	p.obj.Spec.NodeName, p.obj.Spec.Volumes = "", nil
	if _, ok := statefulset.Ordinal(s.name, o.Name); s.sts != nil && !ok {
		return fmt.Errorf("importing pod %s/%s: StatefulSet %s has no pod of that name", o.Namespace, o.Name, s.name)
	}
	w.addPod(p)
	s.pods = append(s.pods, p)
	if s.ds == nil {
		s.spec.Replicas++
	}
	n := w.byName[o.Spec.NodeName]
	if n == nil {
		w.refreshPod(p)
		w.notify(func() { w.scheduler.add(p) })
		return nil
	}
	w.bind(p, n)
	p.running = o.Status.Phase == v1.PodRunning
	if p.running && n.Cut == 0 {
		p.obj.Status.Conditions = w.longReady
	}
	if err := s.parse(p); err != nil {
		return err
	}
	w.scheduler.snap.Assume(p.parsed, n.obj.Name)
	w.refreshPod(p)
	return nil
}
