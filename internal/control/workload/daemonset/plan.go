// Package daemonset keeps one pod of a DaemonSet on every node that should run
// it, and replaces pods within the update's limits.
package daemonset

import (
	"fmt"
	"sort"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// input is everything one plan looks at.
type input struct {
	DS    *appsv1.DaemonSet
	Nodes []*v1.Node
	// Pods are the DaemonSet's own.
	Pods []*v1.Pod
	// Hash is the present template's revision hash.
	Hash string
	// HoldOff says how long to leave a failed pod on a node alone.
	HoldOff func(node string) time.Duration
	Now     time.Time
}

// plan is what to do next about one DaemonSet.
type plan struct {
	// Create lists nodes to make a pod for.
	Create []string
	Delete []*v1.Pod
	// Ended are the pods in Delete that failed or succeeded by themselves.
	Ended   []*v1.Pod
	Status  appsv1.DaemonSetStatus
	Wake    time.Duration
	Because []journal.Fact
}

// ShouldRun says whether a node should get a pod, and whether one that is
// there may stay: a NoSchedule taint keeps pods away but drives none off.
func ShouldRun(ds *appsv1.DaemonSet, n *v1.Node) (run, stay bool) {
	pod := PodFor(ds, n.Name, "")
	if want := ds.Spec.Template.Spec.NodeName; want != "" && want != n.Name {
		return false, false
	}
	if ok, err := nodeaffinity.NewRequiredNodeAffinity(ds.Spec.Template.Spec.NodeSelector, ds.Spec.Template.Spec.Affinity).Match(
		n); err != nil || !ok {
		return false, false
	}
	run, stay = true, true
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule || podutil.Tolerates(pod.Spec.Tolerations, t) {
			continue
		}
		run = false
		stay = stay && t.Effect != v1.TaintEffectNoExecute
	}
	return run, stay
}

// PodFor makes the pod for one node: pinned to it by affinity, tolerating what
// befalls nodes.
func PodFor(ds *appsv1.DaemonSet, node, hash string) *v1.Pod {
	pod := podcontrol.FromTemplate(&ds.Spec.Template, ds.Namespace, ds.Name, podcontrol.Owner(ds, "apps/v1", "DaemonSet"))
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	if g := ds.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		pod.Labels["pod-template-generation"] = g
	}
	pin := []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn,
		Values: []string{node}}}}}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &v1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &v1.NodeAffinity{}
	}
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: pin}
	add := func(key string, effect v1.TaintEffect) {
		want := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: effect}
		for _, t := range pod.Spec.Tolerations {
			if t.MatchToleration(&want) && t.TolerationSeconds == nil {
				return
			}
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, want)
	}
	add(v1.TaintNodeNotReady, v1.TaintEffectNoExecute)
	add(v1.TaintNodeUnreachable, v1.TaintEffectNoExecute)
	add(v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule)
	add(v1.TaintNodeMemoryPressure, v1.TaintEffectNoSchedule)
	add(v1.TaintNodePIDPressure, v1.TaintEffectNoSchedule)
	add(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)
	if pod.Spec.HostNetwork {
		add(v1.TaintNodeNetworkUnavailable, v1.TaintEffectNoSchedule)
	}
	return pod
}

// target is the node a pod is bound to or pinned to.
func target(p *v1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil ||
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == v1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// site is one node with the DaemonSet's pods on it.
type site struct {
	name      string
	run, stay bool
	pods      []*v1.Pod // live: neither ended nor terminating, oldest first
	leaving   int
}

type planner struct {
	input
	plan               plan
	surge, unavailable int
}

// makePlan plans the next pods to create and delete.
func makePlan(in input) plan {
	p := &planner{input: in}
	sites, known := p.sites()
	desired := 0
	for _, s := range sites {
		if s.run {
			desired++
		}
	}
	p.limits(desired)
	if in.DS.DeletionTimestamp == nil {
		for _, s := range sites {
			p.manage(s)
		}
		for _, pod := range in.Pods {
			if !known[target(pod)] && podutil.Active(pod) && pod.Spec.NodeName == "" {
				// Pinned to a node that is gone: it would wait forever.
				p.plan.Delete = append(p.plan.Delete, pod)
			}
		}
		if in.DS.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType && len(p.plan.Create)+len(p.plan.Delete) == 0 {
			p.update(sites)
		}
	}
	p.status(sites)
	if n, m := len(p.plan.Create), len(p.plan.Delete); n+m > 0 {
		p.plan.Because = []journal.Fact{{Name: "wanted", Value: fmt.Sprintf("on %d of %d nodes", desired, len(in.Nodes))},
			{Name: "change", Value: fmt.Sprintf("%d pods to make, %d to delete", n, m)}}
	}
	if len(p.plan.Create) > podcontrol.Burst {
		p.plan.Create = p.plan.Create[:podcontrol.Burst]
	}
	return p.plan
}

func (p *planner) limits(desired int) {
	value := func(v *intstr.IntOrString, def int) int {
		if v == nil {
			return def
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, desired, true)
		if err != nil {
			return def
		}
		return n
	}
	ru := p.DS.Spec.UpdateStrategy.RollingUpdate
	if ru == nil {
		ru = &appsv1.RollingUpdateDaemonSet{}
	}
	p.surge, p.unavailable = value(ru.MaxSurge, 0), value(ru.MaxUnavailable, 1)
	if p.surge == 0 && p.unavailable == 0 {
		p.unavailable = 1
	}
}

func (p *planner) sites() (out []*site, known map[string]bool) {
	byName := map[string]*site{}
	known = map[string]bool{}
	for _, n := range p.Nodes {
		s := &site{name: n.Name}
		s.run, s.stay = ShouldRun(p.DS, n)
		byName[n.Name], known[n.Name] = s, true
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	for _, pod := range p.Pods {
		s := byName[target(pod)]
		switch {
		case s == nil:
		case pod.DeletionTimestamp != nil:
			s.leaving++
		default:
			s.pods = append(s.pods, pod)
		}
	}
	for _, s := range out {
		sort.SliceStable(s.pods, func(i, j int) bool {
			a, b := s.pods[i], s.pods[j]
			if x, y := a.Spec.NodeName != "", b.Spec.NodeName != ""; x != y {
				return x
			}
			if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
				return a.CreationTimestamp.Before(&b.CreationTimestamp)
			}
			return a.Name < b.Name
		})
	}
	return out, known
}

// manage brings one node to no pod, or one, or two during a surge.
func (p *planner) manage(s *site) {
	var live []*v1.Pod
	for _, pod := range s.pods {
		switch {
		case pod.Status.Phase == v1.PodFailed && s.stay:
			if wait := p.HoldOff(s.name); wait > 0 {
				p.wake(wait)
				live = append(live, pod) // counts as there until then
				continue
			}
			p.plan.Delete, p.plan.Ended = append(p.plan.Delete, pod), append(p.plan.Ended, pod)
		case pod.Status.Phase == v1.PodSucceeded && s.stay:
			p.plan.Delete, p.plan.Ended = append(p.plan.Delete, pod), append(p.plan.Ended, pod)
		default:
			live = append(live, pod)
		}
	}
	ended := len(s.pods) - len(live)
	s.pods = live
	switch {
	case !s.stay:
		p.plan.Delete = append(p.plan.Delete, live...)
		s.pods = nil
	case s.run && len(live) == 0 && s.leaving == 0 && ended == 0:
		p.plan.Create = append(p.plan.Create, s.name)
	case len(live) > 1:
		p.deleteSurplus(s)
	}
}

// deleteSurplus deletes all but the oldest pod; during a surge an old and a new pod
// may run side by side.
func (p *planner) deleteSurplus(s *site) {
	var old, fresh []*v1.Pod
	for _, pod := range s.pods {
		if p.current(pod) {
			fresh = append(fresh, pod)
		} else {
			old = append(old, pod)
		}
	}
	keep := s.pods[:1]
	if p.surge > 0 && p.DS.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType && len(old) > 0 && len(fresh) > 0 {
		keep = []*v1.Pod{old[0], fresh[0]}
	}
	var stay []*v1.Pod
	for _, pod := range s.pods {
		kept := false
		for _, k := range keep {
			kept = kept || k == pod
		}
		if kept {
			stay = append(stay, pod)
		} else {
			p.plan.Delete = append(p.plan.Delete, pod)
		}
	}
	s.pods = stay
}

func (p *planner) current(pod *v1.Pod) bool {
	return pod.Labels[appsv1.ControllerRevisionHashLabelKey] == p.Hash
}

func (p *planner) available(pod *v1.Pod) bool {
	ok, wait := podutil.Available(pod, p.DS.Spec.MinReadySeconds, p.Now)
	if wait > 0 {
		p.wake(wait)
	}
	return ok
}

func (p *planner) wake(d time.Duration) {
	if p.plan.Wake == 0 || d < p.plan.Wake {
		p.plan.Wake = d
	}
}

// update replaces pods of earlier templates: with a surge by making the new
// pod first, without by deleting the old one first.
func (p *planner) update(sites []*site) {
	if p.surge > 0 {
		p.updateBySurge(sites)
		return
	}
	down := 0
	var freely, costly []*v1.Pod
	for _, s := range sites {
		switch {
		case !s.run && len(s.pods) == 0:
		case len(s.pods) == 0:
			down++
		case p.current(s.pods[0]):
			if !p.available(s.pods[0]) {
				down++
			}
		case !p.available(s.pods[0]):
			down++
			freely = append(freely, s.pods[0])
		default:
			costly = append(costly, s.pods[0])
		}
	}
	p.plan.Delete = append(p.plan.Delete, freely...)
	p.plan.Delete = append(p.plan.Delete, costly[:min(max(p.unavailable-down, 0), len(costly))]...)
}

func (p *planner) updateBySurge(sites []*site) {
	surging := 0
	var freely, costly []string
	for _, s := range sites {
		var old, fresh *v1.Pod
		for _, pod := range s.pods {
			if p.current(pod) {
				fresh = pod
			} else {
				old = pod
			}
		}
		switch {
		case old == nil:
		case fresh == nil && !s.run:
		case fresh == nil && p.available(old):
			costly = append(costly, s.name)
		case fresh == nil:
			freely = append(freely, s.name)
		case p.available(fresh) || !p.available(old) && !podutil.Ready(old):
			// The new one carries on, or the old one is of no use any more.
			p.plan.Delete = append(p.plan.Delete, old)
		default:
			surging++
		}
	}
	p.plan.Create = append(p.plan.Create, freely...)
	p.plan.Create = append(p.plan.Create, costly[:min(max(p.surge-surging, 0), len(costly))]...)
}

func (p *planner) status(sites []*site) {
	st := *p.DS.Status.DeepCopy()
	st.DesiredNumberScheduled, st.CurrentNumberScheduled, st.NumberMisscheduled = 0, 0, 0
	st.NumberReady, st.UpdatedNumberScheduled, st.NumberAvailable = 0, 0, 0
	byNode := map[string][]*v1.Pod{}
	for _, pod := range p.Pods {
		byNode[target(pod)] = append(byNode[target(pod)], pod)
	}
	for _, s := range sites {
		pods := byNode[s.name]
		if !s.run {
			if len(pods) > 0 {
				st.NumberMisscheduled++
			}
			continue
		}
		st.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		st.CurrentNumberScheduled++
		// The youngest counts: it is the one that stays.
		sort.SliceStable(pods, func(i, j int) bool { return pods[j].CreationTimestamp.Before(&pods[i].CreationTimestamp) })
		if p.current(pods[0]) {
			st.UpdatedNumberScheduled++
		}
		ready, available := false, false
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil {
				ready = ready || podutil.Ready(pod)
				available = available || p.available(pod)
			}
		}
		if ready {
			st.NumberReady++
		}
		if available {
			st.NumberAvailable++
		}
	}
	st.NumberUnavailable = st.DesiredNumberScheduled - st.NumberAvailable
	st.ObservedGeneration = p.DS.Generation
	p.plan.Status = st
}
