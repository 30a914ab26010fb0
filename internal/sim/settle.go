package sim

import (
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/control/workload/daemonset"
	"github.com/berth-dev/berth/internal/control/workload/job"
)

// room is what is left of a node while the cluster is filled.
type room struct {
	n         *node
	cpu, mem  int64
	pods      int64
	unwilling map[string]bool // by class, when a taint or selector forbids
}

// settle fills the cluster as it is when the story begins: every pod has been
// running for long, dealt out evenly over zones and nodes. What does not fit
// is left to the scheduler.
func (w *simulation) settle() error {
	rooms := make([]*room, len(w.nodes))
	for i, n := range w.interleaved() {
		a := n.obj.Status.Allocatable
		rooms[i] = &room{n: n, cpu: a.Cpu().MilliValue(), mem: a.Memory().Value(), pods: a.Pods().Value(), unwilling: map[string]bool{}}
	}
	for _, s := range w.sets {
		if s.ds != nil {
			for _, r := range rooms {
				if run, _ := daemonset.ShouldRun(s.ds, r.n.obj); run {
					w.place(s.daemonPod(r.n), r)
				}
			}
		}
	}
	next := 0
	for _, s := range w.sets {
		if s.ds != nil {
			continue
		}
		next += w.random.IntN(len(rooms))
		for i := range s.spec.Replicas {
			p := s.initialPod(i)
			k := 0
			for ; k < len(rooms) && !rooms[(next+k)%len(rooms)].takes(s); k++ {
			}
			if k == len(rooms) {
				w.addPod(p)
				s.pods = append(s.pods, p)
				w.refreshPod(p)
				w.notify(func() { w.scheduler.add(p) })
				continue
			}
			w.place(p, rooms[(next+k)%len(rooms)])
			next += k + 1
		}
	}
	for _, n := range w.nodes {
		w.scheduler.snap.SetNode(n.obj)
		w.refreshNode(n)
	}
	for _, p := range w.pods {
		if p.node != nil {
			if err := p.set.parse(p); err != nil {
				return err
			}
			w.scheduler.snap.Assume(p.parsed, p.node.obj.Name)
		}
	}
	return nil
}

// interleaved lists nodes so that neighbours are in different zones.
func (w *simulation) interleaved() []*node {
	rank := map[*node]int{}
	seen := map[string]int{}
	for _, n := range w.nodes {
		zone := n.obj.Labels[v1.LabelTopologyZone]
		rank[n] = seen[zone]
		seen[zone]++
	}
	out := slices.Clone(w.nodes)
	slices.SortStableFunc(out, func(a, b *node) int { return rank[a] - rank[b] })
	return out
}

func (s *workload) initialPod(i int) *pod {
	p := s.newPod()
	switch s.spec.Kind {
	case kindStatefulSet:
		p = s.ordinal(i)
	case kindJob:
		p.obj.Finalizers = []string{job.Finalizer}
	case kindPods:
		p.obj.Name = s.name + "-" + strconv.Itoa(i)
	}
	return p
}

func (r *room) takes(s *workload) bool {
	request := &s.template.Spec.Containers[0].Resources.Requests
	if r.pods < 1 || r.cpu < request.Cpu().MilliValue() || r.mem < request.Memory().Value() {
		return false
	}
	no, known := r.unwilling[s.class]
	if !known {
		no = !labels.SelectorFromSet(s.spec.NodeSelector).Matches(labels.Set(r.n.obj.Labels)) || !place.Tolerates(r.n.obj.Spec.Taints,
			s.podSpec.Tolerations)
		r.unwilling[s.class] = no
	}
	return !no
}

// place puts a pod on a node as if it had always been there.
func (w *simulation) place(p *pod, r *room) {
	request := &p.set.template.Spec.Containers[0].Resources.Requests
	r.cpu -= request.Cpu().MilliValue()
	r.mem -= request.Memory().Value()
	r.pods--
	w.addPod(p)
	p.set.pods = append(p.set.pods, p)
	w.bind(p, r.n)
	p.running = true
	p.obj.Status.Phase = v1.PodRunning
	p.obj.Status.Conditions = w.longReady
	w.refreshPod(p)
	if p.set.spec.Kind == kindJob {
		run := p.run
		w.After(time.Duration(w.random.Float64()*float64(p.set.spec.RunsFor)), func() { w.finishPod(p, run) })
	}
}
