package sim

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/control/workload/daemonset"
	"github.com/berth-dev/berth/internal/control/workload/job"
	"github.com/berth-dev/berth/internal/control/workload/replicaset"
	"github.com/berth-dev/berth/internal/control/workload/statefulset"
)

// creators is how many pods the workload controllers create or delete at a
// time.
const creators = 32

// workload is an owner of pods, with the API object its plan needs.
type workload struct {
	w    *simulation
	name string
	spec *workloadSpec
	// class says which workloads are alike to the scheduler.
	class    string
	template v1.PodTemplateSpec
	// podSpec is the template's as admission makes it, parsed what the
	// scheduler reads off it.
	podSpec v1.PodSpec
	parsed  *place.Pod
	owner   []metav1.OwnerReference
	pods    []*pod

	sts *appsv1.StatefulSet
	ds  *appsv1.DaemonSet
	job *batchv1.Job
	// on has a DaemonSet's pods by node.
	on map[*node]*pod

	planned bool // a plan is due
	writing int  // writes of the last plan under way
	again   bool
	// lost holds when each pod that is not made up for stopped to serve.
	lost []time.Duration
}

func (w *simulation) addWorkload(name string, spec *workloadSpec) *workload {
	s := &workload{w: w, name: name, spec: spec, class: spec.Name + "/" + spec.Kind}
	labels := map[string]string{"app": name}
	s.template = v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "main", Image: name, Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(spec.CPU), v1.ResourceMemory: resource.MustParse(spec.Memory)}}}},
		NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations, Priority: &spec.Priority}}
	if spec.SpreadOver != "" {
		s.template.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: spec.SpreadOver,
			WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}
	}
	s.podSpec = s.template.Spec
	s.podSpec.Tolerations = w.set.tolerations(spec.Tolerations, spec.TolerationSeconds)
	s.adopt()
	w.sets = append(w.sets, s)
	return s
}

// adopt makes the API object of the workload's kind.
func (s *workload) adopt() {
	meta := metav1.ObjectMeta{Name: s.name, Namespace: "default", UID: types.UID("set-" + s.name + "-" + s.spec.Kind)}
	replicas := int32(s.spec.Replicas)
	yes := true
	s.owner = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: s.spec.Kind, Name: s.name, UID: meta.UID, Controller: &yes}}
	switch s.spec.Kind {
	case kindStatefulSet:
		// A set in parallel, as most that care for recovery are; one pod at a
		// time would only be slower.
		s.sts = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Template: s.template,
			PodManagementPolicy: appsv1.ParallelPodManagement}}
	case kindDaemonSet:
		s.ds = &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: s.template}}
		s.on = map[*node]*pod{}
	case kindJob:
		completions := int32(s.spec.Completions)
		s.job = &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: &replicas, Completions: &completions,
			Template: s.template}}
	case kindPods:
		s.owner = nil
	}
}

// parse is place.Parse for one of the workload's pods. They are alike but for
// their names, so it is done once.
func (s *workload) parse(p *pod) error {
	if s.parsed == nil {
		parsed, err := place.Parse(&p.obj)
		if err != nil {
			return fmt.Errorf("reading the pods of %s %s: %w", s.spec.Kind, s.name, err)
		}
		s.parsed = parsed
	}
	own := *s.parsed
	own.Obj = &p.obj
	p.parsed = &own
	return nil
}

// newPod makes one of the workload's pods, not yet in the API.
func (s *workload) newPod() *pod {
	return &pod{set: s, obj: v1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.name + "-", Namespace: "default", Labels: s.template.Labels,
			OwnerReferences: s.owner},
		Spec: s.podSpec, Status: v1.PodStatus{Phase: v1.PodPending}}}
}

// changed makes the workload's controller look at it.
func (s *workload) changed() {
	if s.planned || s.w.down > 0 {
		return
	}
	if s.writing > 0 {
		s.again = true
		return
	}
	s.planned = true
	s.w.After(0, func() {
		s.planned = false
		if s.w.down == 0 {
			s.plan()
		}
	})
}

func (s *workload) listAgain() {
	s.writing, s.again = 0, false
	if s.ds != nil {
		for _, n := range s.w.nodes {
			s.seeNode(n)
		}
	}
	s.changed()
}

func (s *workload) objects() []*v1.Pod {
	out := make([]*v1.Pod, len(s.pods))
	for i, p := range s.pods {
		out[i] = &p.obj
	}
	return out
}

// plan asks the kind's own planner and does what it says.
func (s *workload) plan() {
	now := s.w.Time()
	switch s.spec.Kind {
	case kindDeployment:
		p := replicaset.Make(&replicaset.Set{Replicas: int32(s.spec.Replicas), TemplateLabels: s.template.Labels}, s.objects(), nil, now)
		for range p.Create {
			s.create(s.newPod())
		}
		s.delete(p.Delete)
	case kindStatefulSet:
		p := statefulset.Make(statefulset.Input{Set: s.sts, Pods: s.objects(), Current: "1", Update: "1", Now: now})
		for _, c := range p.Create {
			s.create(s.ordinal(c.Ordinal))
		}
		s.delete(p.Delete)
	case kindJob:
		s.planJob(now)
	}
}

func (s *workload) ordinal(n int) *pod {
	p := s.newPod()
	p.obj.Name = s.name + "-" + strconv.Itoa(n)
	p.obj.Labels = map[string]string{"app": s.name, appsv1.ControllerRevisionHashLabelKey: "1"}
	return p
}

// planJob follows the Job's protocol: status first, then finalizers, then
// pods.
func (s *workload) planJob(now time.Time) {
	p := job.Make(job.Input{Job: s.job, Pods: s.objects(), Now: now})
	next := *s.job
	next.Status = p.Status
	s.job = &next
	free := p.Finished
	if p.Uncount {
		free = append(free, p.Delete...)
	}
	for _, o := range free {
		if len(o.Finalizers) > 0 {
			s.write(writePodStatus, func() { o.Finalizers = nil })
		}
	}
	s.delete(p.Delete)
	for range p.Create {
		pod := s.newPod()
		pod.obj.Finalizers = []string{job.Finalizer}
		s.create(pod)
	}
	if p.Wake > 0 {
		s.w.After(p.Wake, s.changed)
	}
	if len(p.Finished) > 0 {
		s.changed()
	}
}

// seeNode lets a DaemonSet follow a node's taints.
func (s *workload) seeNode(n *node) {
	if s.ds == nil || n.deleted {
		return
	}
	run, stay := daemonset.ShouldRun(s.ds, n.obj)
	have := s.on[n]
	if have != nil && have.gone {
		delete(s.on, n)
		have = nil
	}
	switch {
	case have == nil && run:
		s.daemon(n)
	case have != nil && !stay && have.obj.DeletionTimestamp == nil:
		s.delete([]*v1.Pod{&have.obj})
	}
}

// daemon makes a DaemonSet's pod for a node.
func (s *workload) daemon(n *node) *pod {
	p := s.daemonPod(n)
	s.create(p)
	return p
}

func (s *workload) daemonPod(n *node) *pod {
	p := &pod{set: s, obj: *daemonset.PodFor(s.ds, n.obj.Name, "1")}
	p.obj.Name = s.name + "-" + n.obj.Name
	p.obj.Spec.Tolerations = s.w.set.tolerations(p.obj.Spec.Tolerations, nil)
	s.on[n] = p
	return p
}

// create hands a pod to the API.
func (s *workload) create(p *pod) {
	s.write(writePodCreate, func() {
		s.w.api.count(writeEvent)
		s.w.addPod(p)
		s.pods = append(s.pods, p)
		s.w.refreshPod(p)
		s.w.notify(func() { s.w.scheduler.add(p) })
	})
}

func (s *workload) delete(list []*v1.Pod) {
	for _, o := range list {
		p := s.w.podOf(o)
		if p == nil {
			continue
		}
		s.write(writePodDelete, func() {
			s.w.api.count(writeEvent)
			s.w.deletePod(p)
		})
	}
}

// write makes one write of the present plan; the next plan waits for all.
func (s *workload) write(k writeKind, commit func()) {
	s.writing++
	life := s.w.workers.life
	s.w.workers.add(func(done func()) {
		s.w.api.do(k, func() {
			if s.w.workers.life != life {
				return // the writer was stopped before the answer
			}
			commit()
			done()
			if s.writing--; s.writing == 0 && s.again {
				s.again = false
				s.changed()
			}
		})
	})
}

// available counts the pods that a disruption budget counts on.
func (s *workload) available() (n int) {
	for _, p := range s.pods {
		if p.obj.DeletionTimestamp == nil && p.ready() {
			n++
		}
	}
	return n
}
