package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/podutil"
)

// rackLabel is where a node of a scenario carries its rack.
const rackLabel = "rack"

// node is a host and what the API holds of it.
type node struct {
	// obj is the Node in the API. It is replaced, never changed: the scheduler
	// keeps what it was given.
	obj  *v1.Node
	pods []*pod

	clustermodel.Host
	w       *simulation
	faults  uint64 // grows when healed: what was due before is void
	deleted bool

	renewed  time.Duration // renewTime of its Lease
	silent   time.Duration // when it stopped being heard; -1 while it is not
	detected bool          // this silence was noticed
	back     time.Duration // when it could talk again
	nextPost time.Duration // when its status is due
	// marking, following and silencing: queued with the health controller's
	// writers.
	marking, following, silencing bool
	state                         nodeState
}

// talks says whether the API hears the agent.
func (n *node) talks(now time.Duration) bool { return n.Reaches(now) && !n.deleted }

// pod is a pod in the API and on its host.
type pod struct {
	obj    v1.Pod
	number int
	state  podState
	parsed *place.Pod
	set    *workload
	node   *node // bound to
	// running is the truth on the host; run numbers its attempts, so that
	// what was due in an earlier one is void.
	running bool
	run     uint32
	evictAt time.Duration // when eviction looks at it, 0: not at all
	gone    bool
	ending  bool // its agent ends it
	done    bool // it ended by itself
}

func (p *pod) ready() bool { return podutil.Ready(&p.obj) }

func (p *pod) setReady(status v1.ConditionStatus, now time.Time) {
	clustermodel.SetPodReady(&p.obj, status, clustermodel.Seconds(now))
}

// simulation is everything there is.
type simulation struct {
	clustermodel.Clock
	sc     *Scenario
	set    settings
	random *rand.Rand

	nodes  []*node
	byName map[string]*node
	pods   []*pod // by number, which is the UID
	sets   []*workload

	api       server
	health    healthShell
	eviction  evictor
	scheduler scheduler
	gc        podGC
	// down: controllers are away. stalled: they hear nothing.
	down, stalled int
	workers       pool // of all workload controllers
	notes         recorder
	// longReady are the conditions of pods that were ready before it all began;
	// they share them.
	longReady []v1.PodCondition
}

func (w *simulation) podOf(o *v1.Pod) *pod {
	n, err := strconv.Atoi(string(o.UID))
	if err != nil || n >= len(w.pods) {
		return nil
	}
	return w.pods[n]
}

// addPod gives a pod its number. The object's spec may be shared.
func (w *simulation) addPod(p *pod) {
	p.number, p.state = len(w.pods), podNowhere
	p.obj.UID = types.UID(strconv.Itoa(p.number))
	p.obj.CreationTimestamp = metav1.NewTime(w.Time())
	if p.obj.Name == "" {
		p.obj.Name = p.obj.GenerateName + string(p.obj.UID)
	}
	w.pods = append(w.pods, p)
}

// vary is d give or take a share.
func (w *simulation) vary(d time.Duration, share float64) time.Duration {
	return d + time.Duration((w.random.Float64()*2-1)*share*float64(d))
}

func (w *simulation) build() error {
	if w.sc.live != nil {
		return w.sc.live.load(w)
	}
	for i := range w.sc.Cluster.Zones {
		z := &w.sc.Cluster.Zones[i]
		for k := range z.Nodes {
			w.addNode(w.sc.Cluster.node(z, k))
		}
	}
	for i := range w.sc.Workloads {
		spec := &w.sc.Workloads[i]
		for k := range spec.Count {
			name := spec.Name
			if spec.Count > 1 {
				name = fmt.Sprintf("%s-%d", spec.Name, k+1)
			}
			w.addWorkload(name, spec)
		}
	}
	return w.settle()
}

// node makes the k-th node of a zone.
func (c *Cluster) node(z *zoneSpec, k int) *v1.Node {
	labels := map[string]string{v1.LabelTopologyZone: z.Name, v1.LabelHostname: fmt.Sprintf("%s-%d", z.Name, k+1)}
	if z.Region != "" {
		labels[v1.LabelTopologyRegion] = z.Region
	}
	if z.Racks > 0 {
		labels[rackLabel] = fmt.Sprintf("%s-r%d", z.Name, k%z.Racks+1)
	}
	for key, value := range z.Labels {
		labels[key] = value
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: labels[v1.LabelHostname], Labels: labels},
		Spec:       v1.NodeSpec{Taints: slices.Clone(z.Taints)},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse(c.CPU),
			v1.ResourceMemory: resource.MustParse(c.Memory),
			v1.ResourcePods:   *resource.NewQuantity(c.MaxPods, resource.DecimalSI)}},
	}
}

// addNode adds a node that has been up and ready for a long time.
func (w *simulation) addNode(obj *v1.Node) {
	obj.UID = types.UID("node-" + obj.Name)
	obj.CreationTimestamp = metav1.NewTime(clustermodel.Epoch.Add(-24 * time.Hour))
	n := &node{w: w, obj: obj, silent: -1, back: -1, state: nodeNowhere}
	n.obj.Status.Conditions = conditions(v1.ConditionTrue, clustermodel.Epoch, nil)
	w.nodes = append(w.nodes, n)
	w.byName[obj.Name] = n
}

// conditions are those of a node whose Ready has a status, with transition
// times kept where nothing changed.
func conditions(ready v1.ConditionStatus, now time.Time, before []v1.NodeCondition) []v1.NodeCondition {
	return clustermodel.WithTransitions(clustermodel.Conditions(ready, clustermodel.Seconds(now)), before)
}
