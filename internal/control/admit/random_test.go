package admit

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// The plugins below are compared with the obvious: a table that says of each
// single change what it takes, so that any number of changes at once is refused
// if one of them is.

// rounds of random input for each comparison.
const rounds = 5000

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 7))
}

// labelOfNode says whether a node may set, change or remove a label on itself
// (KEP-279).
var labelOfNode = map[string]bool{
	"free": true, "example.com/x": true, "kubernetes.io": true, "k8s.io.example.com/x": true, "notkubernetes.io/x": true,
	"kubernetes.io/hostname": true, "kubernetes.io/os": true, "kubernetes.io/arch": true, "beta.kubernetes.io/os": true,
	"beta.kubernetes.io/arch":          true,
	"node.kubernetes.io/instance-type": true, "beta.kubernetes.io/instance-type": true, "topology.kubernetes.io/zone": true,
	"topology.kubernetes.io/region": true, "failure-domain.beta.kubernetes.io/zone": true, "failure-domain.beta.kubernetes.io/region": true,
	"kubelet.kubernetes.io/x": true, "a.kubelet.kubernetes.io/x": true, "node.kubernetes.io/x": true, "a.node.kubernetes.io/x": true,
	"node-restriction.kubernetes.io/x": false, "a.node-restriction.kubernetes.io/x": false, "node-role.kubernetes.io/x": false,
	"kubernetes.io/x": false, "k8s.io/x": false, "a.k8s.io/x": false, "a.kubernetes.io/x": false, "topology.kubernetes.io/rack": false,
}

// TestNodeRestrictionAgrees: random writes of Nodes by nodes.
func TestNodeRestrictionAgrees(t *testing.T) {
	r, random := restrictionRig(t), seeded(t)
	keys := []string{}
	for key := range labelOfNode {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	some := func() (out []func(*corev1.Node)) {
		for range random.IntN(4) {
			key := keys[random.IntN(len(keys))]
			out = append(out, label(key, []string{"a", "b"}[random.IntN(2)]))
		}
		if random.IntN(4) == 0 {
			out = append(out, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: "NoSchedule"}} })
		}
		if random.IntN(6) == 0 {
			out = append(out, func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} })
		}
		return out
	}
	refusals := 0
	for range rounds {
		var old, now *corev1.Node
		changes := some()
		if random.IntN(3) > 0 {
			old, now = bareNode(changes...), bareNode(append(slices.Clone(changes), some()...)...)
			if random.IntN(3) == 0 { // something is removed
				now = bareNode(some()...)
			}
		} else {
			now = bareNode(changes...)
		}
		name := "n1"
		if random.IntN(5) == 0 {
			name = "n2"
		}
		now.Name = name
		req := request{resource: []string{"nodes", "nodes/status"}[random.IntN(2)], now: now, user: node1}
		allowed := name == "n1"
		if old != nil {
			old.Name = name
			req.old = old
			allowed = allowed && len(old.Spec.Taints) == len(now.Spec.Taints) && len(old.OwnerReferences) == len(now.OwnerReferences)
		} else {
			req.resource = "nodes"
		}
		for key, may := range labelOfNode {
			was, had := labelsOf(old)[key]
			is, has := now.Labels[key]
			allowed = allowed && (may || had == has && was == is)
		}
		err := r.do(req)
		if (err == nil) != allowed {
			t.Fatalf("%s %s from %v to %v: %v, want allowed=%v", req.resource, name, old, now, err, allowed)
		}
		if err != nil {
			refusals++
		}
	}
	if refusals < rounds/10 || refusals > rounds*9/10 {
		t.Errorf("%d of %d were refused: the input is lopsided", refusals, rounds)
	}
}

func labelsOf(n *corev1.Node) map[string]string {
	if n == nil {
		return nil
	}
	return n.Labels
}

// Levels of Pod Security.
const (
	restricted = iota
	baseline
	privileged
)

// breaks is a change of a pod that meets "restricted", and the level it needs.
type breaks struct {
	needs  int
	change func(*corev1.Pod, *corev1.SecurityContext)
}

var podChanges = []breaks{
	{restricted, func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Labels = map[string]string{"a": "b"} }},
	{restricted, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.ReadOnlyRootFilesystem = ptr.To(false) }},
	{restricted, func(_ *corev1.Pod, s *corev1.SecurityContext) {
		s.Capabilities.Add = append(s.Capabilities.Add, "NET_BIND_SERVICE")
	}},
	{restricted, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		withVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})(p)
	}},
	{restricted, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, corev1.Sysctl{Name: "net.ipv4.tcp_syncookies", Value: "1"})
	}},
	{restricted, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	}},
	{baseline, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = nil }},
	{baseline, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.Capabilities.Drop = nil }},
	{baseline, func(_ *corev1.Pod, s *corev1.SecurityContext) {
		s.Capabilities.Add = append(s.Capabilities.Add, "CHOWN")
	}},
	{baseline, func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.SecurityContext.RunAsNonRoot = nil }},
	{baseline, func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.SecurityContext.SeccompProfile = nil }},
	{baseline, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.RunAsUser = ptr.To(int64(0)) }},
	{baseline, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		withVolume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}})(p)
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.Privileged = ptr.To(true) }},
	{privileged, func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.HostNetwork = true }},
	{privileged, func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.HostPID = true }},
	{privileged, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		withVolume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}})(p)
	}},
	{privileged, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) {
		s.Capabilities.Add = append(s.Capabilities.Add, "SYS_ADMIN")
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) {
		s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) {
		s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.ProcMount = ptr.To(corev1.UnmaskedProcMount) }},
	{privileged, func(p *corev1.Pod, _ *corev1.SecurityContext) {
		p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, corev1.Sysctl{Name: "kernel.msgmax", Value: "1"})
	}},
	{privileged, func(_ *corev1.Pod, s *corev1.SecurityContext) { s.SELinuxOptions = &corev1.SELinuxOptions{User: "u"} }},
}

// TestPodSecurityAgrees: random changes of a pod that meets the strictest
// level, in containers of all kinds.
func TestPodSecurityAgrees(t *testing.T) {
	names := []string{"restricted", "baseline", "privileged"}
	var spaces []runtime.Object
	for _, level := range names {
		spaces = append(spaces,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: level,
				Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}})
	}
	r, random := newRig(t, newPodSecurity, spaces...), seeded(t)
	strict := func() *corev1.SecurityContext {
		return &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	for range rounds {
		level := random.IntN(len(names))
		pod := newPod()
		pod.Namespace = names[level]
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		pod.Spec.Containers[0].SecurityContext = strict()
		pod.Spec.InitContainers = []corev1.Container{{Name: "i", SecurityContext: strict()}}
		needs := restricted
		var applied []string
		for range random.IntN(4) {
			i := random.IntN(len(podChanges))
			c := podChanges[i]
			of := &pod.Spec.Containers[0]
			if random.IntN(3) == 0 {
				of = &pod.Spec.InitContainers[0]
			}
			// A later change of ports may take an earlier one back.
			if len(pod.Spec.Containers[0].Ports) > 0 && c.needs == restricted {
				continue
			}
			c.change(pod, of.SecurityContext)
			needs = max(needs, c.needs)
			applied = append(applied, names[c.needs]+":"+of.Name)
		}
		err := r.do(request{resource: "pods", now: pod})
		if allowed := needs <= level; (err == nil) != allowed {
			t.Fatalf("in a namespace that enforces %s, with changes for %s: %v, want allowed=%v\n%+v", names[level],
				strings.Join(applied, ", "), err, allowed, pod.Spec)
		}
	}
}
