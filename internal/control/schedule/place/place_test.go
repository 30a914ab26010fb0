package place

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

func testNode(name, cpu, mem string, pods int64, l map[string]string, taints ...v1.Taint) *v1.Node {
	if l == nil {
		l = map[string]string{}
	}
	l[v1.LabelHostname] = name
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: l}, Spec: v1.NodeSpec{Taints: taints},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(mem),
			v1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI)}}}
}

func testPod(name, cpu string, mods ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "img"}}}}
	if cpu != "" {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	}
	for _, m := range mods {
		m(p)
	}
	return p
}

func on(node string) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.NodeName = node } }
func prio(n int32) func(*v1.Pod)   { return func(p *v1.Pod) { p.Spec.Priority = &n } }
func label(k, v string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[k] = v
	}
}

// TestTranscripts runs each testdata/*.yaml: nodes, placed pods and pods to
// place in order, and compares the decisions with the .out beside it.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts found: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			golden.Check(t, strings.TrimSuffix(f, ".yaml")+".out", runTranscript(t, f))
		})
	}
}

type transcript struct {
	Nodes   []v1.Node
	Volumes []v1.PersistentVolume
	Claims  []v1.PersistentVolumeClaim
	Classes []struct {
		Name, Mode, Provisioner string
	}
	// Drivers tell their room, Rooms what it is.
	Drivers []string
	Rooms   []storagev1.CSIStorageCapacity
	Budgets []policyv1.PodDisruptionBudget
	// Slices, DeviceClasses and ResourceClaims are of dynamic resource
	// allocation.
	Slices         []resourceapi.ResourceSlice
	DeviceClasses  []resourceapi.DeviceClass
	ResourceClaims []resourceapi.ResourceClaim
	Placed         []v1.Pod
	Place          []v1.Pod
}

func runTranscript(t *testing.T, file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var in transcript
	if err := yaml.UnmarshalStrict(raw, &in); err != nil {
		t.Fatal(err)
	}
	s := NewSnapshot()
	fill := func(p *v1.Pod) *v1.Pod {
		if p.Namespace == "" {
			p.Namespace = "ns"
		}
		p.UID = types.UID(p.Name)
		return p
	}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[v1.LabelHostname] = n.Name
		if _, ok := n.Status.Allocatable[v1.ResourcePods]; !ok && n.Status.Allocatable != nil {
			n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("110")
		}
		s.SetNode(n)
	}
	for i := range in.Volumes {
		s.SetVolume(&in.Volumes[i])
	}
	for i := range in.Claims {
		s.SetClaim(&in.Claims[i])
	}
	for _, c := range in.Classes {
		s.SetClass(storageClass(c.Name, c.Mode, c.Provisioner))
	}
	for _, name := range in.Drivers {
		s.SetCSIDriver(tellsRoom(name))
	}
	for i := range in.Rooms {
		s.SetCapacity(&in.Rooms[i])
	}
	for i := range in.Budgets {
		s.SetBudget(&in.Budgets[i])
	}
	for i := range in.Slices {
		s.SetResourceSlice(&in.Slices[i])
	}
	for i := range in.DeviceClasses {
		s.SetDeviceClass(&in.DeviceClasses[i])
	}
	for i := range in.ResourceClaims {
		in.ResourceClaims[i].Namespace = "ns"
		s.SetResourceClaim(&in.ResourceClaims[i])
	}
	for i := range in.Placed {
		if err := s.SetPod(fill(&in.Placed[i])); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	for i := range in.Place {
		p, err := Parse(fill(&in.Place[i]))
		if err != nil {
			t.Fatal(err)
		}
		d := s.Place(p, Options{All: true})
		if d.Node != "" {
			fmt.Fprintf(&out, "%s -> %s\n", p.Obj.Name, d.Node)
			for _, b := range d.Volumes.Bind {
				fmt.Fprintf(&out, "  reserves %s for %s\n", b.Volume, b.Claim)
			}
			for _, c := range d.Volumes.Provision {
				fmt.Fprintf(&out, "  provisions %s\n", c)
			}
			for _, c := range d.Devices.Claims {
				fmt.Fprintf(&out, "  claim %s %s\n", c.Claim, devicesOf(c.Result))
			}
			s.Assume(p, d.Node)
			s.AssumeVolumes(d.Volumes)
			s.AssumeDevices(d.Devices)
			continue
		}
		fmt.Fprintf(&out, "%s: %s\n", p.Obj.Name, d.Message())
		if d.Release != nil {
			fmt.Fprintf(&out, "  gives back claim %s\n", d.Release)
		}
		if d.Preempt != nil {
			var names []string
			for _, v := range d.Preempt.Victims {
				names = append(names, v.Name)
			}
			fmt.Fprintf(&out, "  preempts on %s: %s (%d against a budget)\n", d.Preempt.Node, strings.Join(names, ", "),
				d.Preempt.Violations)
		}
	}
	return out.String()
}

// TestSnapshotIsIncremental drives a snapshot with random events and compares
// it, after each, with one built from scratch: same sums, same decisions.
func TestSnapshotIsIncremental(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := NewSnapshot()
	nodes, pods := map[string]*v1.Node{}, map[types.UID]*v1.Pod{}
	for step := range 3000 {
		switch name := fmt.Sprintf("n%d", r.IntN(6)); r.IntN(5) {
		case 0:
			n := testNode(name, fmt.Sprint(1+r.IntN(4)), "4Gi", 10, map[string]string{"zone": fmt.Sprint(r.IntN(2))})
			nodes[name] = n
			s.SetNode(n)
		case 1:
			if r.IntN(4) == 0 {
				delete(nodes, name)
				s.RemoveNode(name)
			}
		case 2, 3:
			p := testPod(fmt.Sprintf("p%d", r.IntN(20)), fmt.Sprintf("%dm", r.IntN(900)), on(name), label("app", fmt.Sprint(r.IntN(3))))
			if r.IntN(3) == 0 {
				p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: int32(80 + r.IntN(2))}}
			}
			if r.IntN(3) == 0 {
				p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
						TopologyKey:   "zone",
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(r.IntN(3))}}}}}}
			}
			pods[p.UID] = p
			if err := s.SetPod(p); err != nil {
				t.Fatal(err)
			}
		case 4:
			uid := types.UID(fmt.Sprintf("p%d", r.IntN(20)))
			delete(pods, uid)
			s.RemovePod(uid)
		}
		fresh := NewSnapshot()
		var names []string
		for n := range nodes {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			fresh.SetNode(nodes[n])
		}
		for _, p := range pods {
			if err := fresh.SetPod(p); err != nil {
				t.Fatal(err)
			}
		}
		probe, err := Parse(testPod("probe", "700m", label("app", fmt.Sprint(r.IntN(3)))))
		if err != nil {
			t.Fatal(err)
		}
		if a, b := summary(s), summary(fresh); a != b {
			t.Fatalf("step %d: incremental\n%s\nfresh\n%s", step, a, b)
		}
		a, b := s.Place(probe, Options{All: true}), fresh.Place(probe, Options{All: true})
		if (a.Node == "") != (b.Node == "") || a.Message() != b.Message() || a.Feasible != b.Feasible {
			t.Fatalf("step %d: incremental %+v, fresh %+v", step, a, b)
		}
		if a.Node != "" && a.Best.Total != b.Best.Total {
			t.Fatalf("step %d: incremental rates %+v, fresh %+v", step, a.Best, b.Best)
		}
	}
}

func summary(s *Snapshot) string {
	var lines []string
	for _, n := range s.nodes {
		lines = append(lines, fmt.Sprintf("%s exists=%v used=%+v score=%d/%d pods=%d ports=%d owners=%d",
			n.name, n.obj != nil, n.requested, n.scoreCPU, n.scoreMem, len(n.pods), n.ports, len(n.owners)))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + fmt.Sprintf("\nchoosy %d", len(s.choosy))
}

// TestPreemptionVictimsSuffice checks on random clusters that the victims make
// the pod fit, that all have lower priority, and that none could be spared.
func TestPreemptionVictimsSuffice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	tried := 0
	for range 2000 {
		s := NewSnapshot()
		for i := range 3 {
			s.SetNode(testNode(fmt.Sprintf("n%d", i), "2", "4Gi", 6, nil))
		}
		for i := range 4 + r.IntN(10) {
			p := testPod(fmt.Sprintf("p%d", i), fmt.Sprintf("%dm", 100+r.IntN(900)), on(fmt.Sprintf("n%d", r.IntN(3))),
				prio(int32(r.IntN(4))))
			if err := s.SetPod(p); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Parse(testPod("new", fmt.Sprintf("%dm", 500+r.IntN(1500)), prio(int32(1+r.IntN(3)))))
		if err != nil {
			t.Fatal(err)
		}
		before := summary(s)
		d := s.Place(p, Options{})
		if summary(s) != before {
			t.Fatal("deciding changed the snapshot")
		}
		if d.Preempt == nil {
			continue
		}
		tried++
		for spare := -1; spare < len(d.Preempt.Victims); spare++ {
			trial := NewSnapshot()
			trial.SetNode(s.nodes[d.Preempt.Node].obj)
			for uid, pl := range s.nodes[d.Preempt.Node].pods {
				victim := false
				for i, v := range d.Preempt.Victims {
					victim = victim || (v.UID == uid && i != spare)
				}
				if !victim {
					trial.Assume(pl.Pod, d.Preempt.Node)
				} else if pl.Priority >= p.Priority {
					t.Fatalf("victim %s has priority %d, the pod %d", pl.Obj.Name, pl.Priority, p.Priority)
				}
			}
			fits := trial.Place(p, Options{NoPreemption: true}).Node != ""
			if fits != (spare == -1) {
				t.Fatalf("sparing victim %d: fits=%v", spare, fits)
			}
		}
	}
	if tried < 100 {
		t.Fatalf("only %d random clusters needed preemption: the test tests little", tried)
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		for _, kind := range []string{"plain", "spread", "daemon"} {
			b.Run(fmt.Sprintf("%s/nodes=%d", kind, n), func(b *testing.B) {
				s := NewSnapshot()
				for i := range n {
					s.SetNode(testNode(fmt.Sprintf("n%d", i), "32", "128Gi", 110,
						map[string]string{v1.LabelTopologyZone: fmt.Sprint(i % 3)}))
				}
				for i := range n * 10 {
					if err := s.SetPod(testPod(fmt.Sprintf("p%d", i), "100m", on(fmt.Sprintf("n%d", i%n)), label("app", "x"))); err != nil {
						b.Fatal(err)
					}
				}
				obj := testPod("probe", "100m", label("app", "x"))
				switch kind {
				case "spread":
					obj.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelTopologyZone,
						WhenUnsatisfiable: v1.DoNotSchedule,
						LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
				case "daemon":
					obj.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
							NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name",
								Operator: v1.NodeSelectorOpIn, Values: []string{"n7"}}}}}}}}
				}
				p, err := Parse(obj)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if d := s.Place(p, Options{}); d.Node == "" {
						b.Fatal(d.Message())
					}
				}
			})
		}
	}
}
