package place

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

var standIns = v1.ResourceList{
	v1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI),
	v1.ResourceMemory: *resource.NewQuantity(defaultMemory, resource.BinarySI),
}

// Pod is a pod with everything that placement needs parsed once.
type Pod struct {
	Obj      *v1.Pod
	Request  Resources
	Priority int32

	scoreCPU, scoreMem int64
	ports              []port
	// owner is the UID of the controlling object, empty for a bare pod.
	owner types.UID
	// claims are the names of the claims its volumes use, ephemeral ones
	// included, in the pod's namespace.
	claims []string

	// constraints is nil for a pod that constrains no other pod's node.
	*constraints
}

// constraints are the parts most pods do not have.
type constraints struct {
	affinity, anti         []term
	likes, dislikes        []weighted
	hardSpread, softSpread []spread
}

type port struct {
	ip    string
	proto v1.Protocol
	port  int32
}

// term is one parsed pod (anti-)affinity term.
type term struct {
	key        string
	selector   labels.Selector
	namespaces map[string]bool
	// nsSelector adds the namespaces whose labels match; nil adds none.
	nsSelector labels.Selector
}

type weighted struct {
	term
	weight int64
}

// spread is one parsed topology spread constraint.
type spread struct {
	key         string
	maxSkew     int
	minDomains  int
	selector    labels.Selector
	honorTaints bool
	anyNode     bool // nodeAffinityPolicy Ignore
}

// Parse prepares a pod. An error means a selector the API server should have
// refused; it names the field.
func Parse(pod *v1.Pod) (*Pod, error) {
	p := &Pod{Obj: pod, Priority: corev1helpers.PodPriority(pod)}
	p.Request, p.scoreCPU, p.scoreMem = requestOf(pod)
	if c := metav1.GetControllerOf(pod); c != nil {
		p.owner = c.UID
	}
	p.ports = hostPorts(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			p.claims = append(p.claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			p.claims = append(p.claims, pod.Name+"-"+v.Name)
		}
	}
	if len(pod.Spec.TopologySpreadConstraints) == 0 && (pod.Spec.Affinity == nil ||
		(pod.Spec.Affinity.PodAffinity == nil && pod.Spec.Affinity.PodAntiAffinity == nil)) {
		p.constraints = noConstraints
		return p, nil
	}
	c := &constraints{}
	p.constraints = c
	if err := c.parseAffinity(pod); err != nil {
		return nil, err
	}
	return p, c.parseSpread(pod)
}

var noConstraints = &constraints{}

func hostPorts(pod *v1.Pod) []port {
	var out []port
	add := func(c *v1.Container) {
		for _, cp := range c.Ports {
			if cp.HostPort <= 0 {
				continue
			}
			p := port{ip: cp.HostIP, proto: cp.Protocol, port: cp.HostPort}
			if p.ip == "" || p.ip == "::" {
				p.ip = "0.0.0.0"
			}
			if p.proto == "" {
				p.proto = v1.ProtocolTCP
			}
			out = append(out, p)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}

func (a port) clashes(b port) bool {
	return a.port == b.port && a.proto == b.proto && (a.ip == b.ip || a.ip == "0.0.0.0" || b.ip == "0.0.0.0")
}

func (c *constraints) parseAffinity(pod *v1.Pod) error {
	if pod.Spec.Affinity == nil {
		return nil
	}
	if a := pod.Spec.Affinity.PodAffinity; a != nil {
		if err := parseTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution, &c.affinity, &c.likes); err != nil {
			return fmt.Errorf("reading spec.affinity.podAffinity: %w", err)
		}
	}
	if a := pod.Spec.Affinity.PodAntiAffinity; a != nil {
		if err := parseTerms(pod, a.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PreferredDuringSchedulingIgnoredDuringExecution, &c.anti, &c.dislikes); err != nil {
			return fmt.Errorf("reading spec.affinity.podAntiAffinity: %w", err)
		}
	}
	return nil
}

func parseTerms(pod *v1.Pod, hard []v1.PodAffinityTerm, soft []v1.WeightedPodAffinityTerm, terms *[]term, wants *[]weighted) error {
	for i := range hard {
		t, err := parseTerm(pod, &hard[i])
		if err != nil {
			return fmt.Errorf("required term %d: %w", i, err)
		}
		*terms = append(*terms, t)
	}
	for i := range soft {
		t, err := parseTerm(pod, &soft[i].PodAffinityTerm)
		if err != nil {
			return fmt.Errorf("preferred term %d: %w", i, err)
		}
		*wants = append(*wants, weighted{t, int64(soft[i].Weight)})
	}
	return nil
}

func parseTerm(pod *v1.Pod, in *v1.PodAffinityTerm) (term, error) {
	t := term{key: in.TopologyKey}
	var err error
	if t.selector, err = metav1.LabelSelectorAsSelector(in.LabelSelector); err != nil {
		return t, err
	}
	if in.LabelSelector != nil {
		if t.selector, err = withLabelKeys(t.selector, pod, in.MatchLabelKeys, selection.In); err != nil {
			return t, err
		}
		if t.selector, err = withLabelKeys(t.selector, pod, in.MismatchLabelKeys, selection.NotIn); err != nil {
			return t, err
		}
	}
	t.namespaces = map[string]bool{}
	for _, ns := range in.Namespaces {
		t.namespaces[ns] = true
	}
	if in.NamespaceSelector != nil {
		if t.nsSelector, err = metav1.LabelSelectorAsSelector(in.NamespaceSelector); err != nil {
			return t, err
		}
	} else if len(in.Namespaces) == 0 {
		t.namespaces[pod.Namespace] = true
	}
	return t, nil
}

// withLabelKeys narrows a selector by the pod's own values of the given keys,
// as matchLabelKeys asks. A server that has merged them already makes this a
// no-op in effect.
func withLabelKeys(s labels.Selector, pod *v1.Pod, keys []string, op selection.Operator) (labels.Selector, error) {
	for _, k := range keys {
		v, ok := pod.Labels[k]
		if !ok {
			continue
		}
		r, err := labels.NewRequirement(k, op, []string{v})
		if err != nil {
			return nil, fmt.Errorf("label key %q: %w", k, err)
		}
		s = s.Add(*r)
	}
	return s, nil
}

func (c *constraints) parseSpread(pod *v1.Pod) error {
	for i := range pod.Spec.TopologySpreadConstraints {
		in := &pod.Spec.TopologySpreadConstraints[i]
		sel, err := metav1.LabelSelectorAsSelector(in.LabelSelector)
		if err == nil && in.LabelSelector != nil {
			sel, err = withLabelKeys(sel, pod, in.MatchLabelKeys, selection.In)
		}
		if err != nil {
			return fmt.Errorf("reading spec.topologySpreadConstraints[%d]: %w", i, err)
		}
		s := spread{key: in.TopologyKey, maxSkew: int(in.MaxSkew), minDomains: 1, selector: sel}
		if in.MinDomains != nil {
			s.minDomains = int(*in.MinDomains)
		}
		s.honorTaints = in.NodeTaintsPolicy != nil && *in.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor
		s.anyNode = in.NodeAffinityPolicy != nil && *in.NodeAffinityPolicy == v1.NodeInclusionPolicyIgnore
		if in.WhenUnsatisfiable == v1.ScheduleAnyway {
			c.softSpread = append(c.softSpread, s)
		} else {
			c.hardSpread = append(c.hardSpread, s)
		}
	}
	return nil
}

// matches says whether pod p in a namespace with the given labels is selected
// by the term.
func (t *term) matches(p *v1.Pod, nsLabels labels.Set) bool {
	if !t.namespaces[p.Namespace] && (t.nsSelector == nil || !t.nsSelector.Matches(nsLabels)) {
		return false
	}
	return t.selector.Matches(labels.Set(p.Labels))
}

// pinned returns the node names a pod's required node affinity allows when
// every term pins metadata.name, as daemon pods do; ok is false otherwise.
func pinned(pod *v1.Pod) (names map[string]bool, ok bool) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil, false
	}
	req := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if req == nil || len(req.NodeSelectorTerms) == 0 {
		return nil, false
	}
	names = map[string]bool{}
	for i := range req.NodeSelectorTerms {
		found := false
		for _, f := range req.NodeSelectorTerms[i].MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == v1.NodeSelectorOpIn && len(f.Values) == 1 {
				names[f.Values[0]], found = true, true
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return names, true
}

func requiredNodes(pod *v1.Pod) *nodeaffinity.RequiredNodeAffinity {
	if len(pod.Spec.NodeSelector) == 0 && (pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil) {
		return nil
	}
	r := nodeaffinity.GetRequiredNodeAffinity(pod)
	return &r
}

func imageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}
