package admit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func tolerationText(ts []corev1.Toleration) string {
	var out []string
	for _, t := range ts {
		out = append(out, fmt.Sprintf("%s:%s:%s:%d", t.Key, t.Operator, t.Effect, ptr.Deref(t.TolerationSeconds, -1)))
	}
	return strings.Join(out, " ")
}

func TestTolerations(t *testing.T) {
	const notReady, unreachable = "node.kubernetes.io/not-ready:Exists:NoExecute:300", "node.kubernetes.io/unreachable:Exists:NoExecute:300"
	for _, c := range []struct {
		name string
		have []corev1.Toleration
		want string
	}{
		{"none", nil, notReady + " " + unreachable},
		{"one for ever", []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists"}},
			"node.kubernetes.io/not-ready:Exists::-1 " + unreachable},
		{"everything", []corev1.Toleration{{Operator: "Exists"}}, ":Exists::-1"},
		{"other effect", []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoSchedule"}},
			"node.kubernetes.io/unreachable:Exists:NoSchedule:-1 " + notReady + " " + unreachable},
		{"own seconds", []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute",
			TolerationSeconds: ptr.To[int64](5)}},
			"node.kubernetes.io/unreachable:Exists:NoExecute:5 " + notReady},
	} {
		r := newRig(t, newDefaultTolerationSeconds)
		pod := newPod(func(p *corev1.Pod) { p.Spec.Tolerations = c.have })
		expect(t, r.do(request{resource: "pods", now: pod}), "")
		if got := tolerationText(pod.Spec.Tolerations); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		untouched := newPod()
		expect(t, r.do(request{resource: "pods/status", now: untouched, old: newPod()}), "")
		if len(untouched.Spec.Tolerations) != 0 {
			t.Errorf("a status write got tolerations")
		}
	}
}

func TestNotReadyTaint(t *testing.T) {
	r := newRig(t, newTaintNodesByCondition)
	node := &corev1.Node{ObjectMeta: named("", "n")}
	for range 2 {
		expect(t, r.do(request{resource: "nodes", now: node}), "")
		if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "node.kubernetes.io/not-ready" ||
			node.Spec.Taints[0].Effect != "NoSchedule" {
			t.Errorf("taints %v", node.Spec.Taints)
		}
	}
}

func TestPriority(t *testing.T) {
	class := func(name string, value int32, isDefault bool, policy *corev1.PreemptionPolicy) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: named("", name), Value: value, GlobalDefault: isDefault, PreemptionPolicy: policy}
	}
	never := corev1.PreemptNever
	r := newRig(t, newPriority, class("high", 100, false, nil), class("std", 7, true, &never), class("std2", 9, true, nil))
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string // error, or "class value policy" after "="
	}{
		{"default", func(*corev1.Pod) {}, "=std 7 Never"},
		{"named", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, "=high 100 PreemptLowerPriority"},
		{"system, not stored", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
			"=system-node-critical 2000001000 PreemptLowerPriority"},
		{"unknown", func(p *corev1.Pod) { p.Spec.PriorityClassName = "nope" }, "no PriorityClass with name nope was found"},
		{"same value given", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](7) }, "=std 7 Never"},
		{"other value given", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](8) },
			"the integer value of priority (8) must not be provided in pod spec; priority admission controller computed 7"},
		{"other policy given", func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority) },
			"the string value of PreemptionPolicy"},
	} {
		pod := newPod(c.change)
		err := r.do(request{resource: "pods", now: pod})
		if outcome, fine := strings.CutPrefix(c.want, "="); fine {
			expect(t, err, "")
			if got := fmt.Sprint(pod.Spec.PriorityClassName, " ", ptr.Deref(pod.Spec.Priority, -1), " ",
				ptr.Deref(pod.Spec.PreemptionPolicy, "")); got != outcome {
				t.Errorf("%s: got %s, want %s", c.name, got, outcome)
			}
			continue
		}
		expect(t, err, c.want)
	}
	if _, err := r.client.SchedulingV1().PriorityClasses().Create(t.Context(), class("fresh", 3, false, nil),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, r.do(request{resource: "pods", now: newPod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "fresh" })}), "")
	old := newPod(func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](5) })
	updated := newPod()
	expect(t, r.do(request{resource: "pods", now: updated, old: old}), "")
	if ptr.Deref(updated.Spec.Priority, -1) != 5 {
		t.Error("an update that leaves priority out loses it")
	}
	expect(t, r.do(request{resource: "priorityclasses.scheduling.k8s.io", now: class("new", 1, true, nil)}),
		"PriorityClass std is already marked as default")
	expect(t, r.do(request{resource: "priorityclasses.scheduling.k8s.io", now: class("new", 1, false, nil)}), "")
	expect(t, r.do(request{resource: "priorityclasses.scheduling.k8s.io", now: class("std", 1, true, nil),
		old: class("std", 1, true, nil)}), "")
}

func TestServiceAccount(t *testing.T) {
	accounts := []*corev1.ServiceAccount{
		{ObjectMeta: named("ns", "default"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		{ObjectMeta: named("ns", "quiet"), AutomountServiceAccountToken: ptr.To(false)},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "strict",
			Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
			Secrets: []corev1.ObjectReference{{Name: "ok"}}, AutomountServiceAccountToken: ptr.To(false)},
	}
	r := newRig(t, newServiceAccount, accounts[0], accounts[1], accounts[2])
	r.plugin.(*account).suffix = func() string { return "abcde" }
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"} }
	uses := func(account string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.ServiceAccountName = account }
	}
	secret := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes,
				corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
		}
	}
	for _, c := range []struct {
		name   string
		change []func(*corev1.Pod)
		// want is an error, or after "=" account, pull secrets, volumes, mounts.
		want string
	}{
		{"plain", nil, "=default pull kube-api-access-abcde kube-api-access-abcde"},
		{"own pull secret", []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{
				{Name: "mine"}}
		}}, "=default mine kube-api-access-abcde kube-api-access-abcde"},
		{"account without token", []func(*corev1.Pod){uses("quiet")}, "=quiet   "},
		{"pod wants it all the same", []func(*corev1.Pod){uses("quiet"),
			func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(true) }},
			"=quiet  kube-api-access-abcde kube-api-access-abcde"},
		{"pod does not want it", []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(false) }},
			"=default pull  "},
		{"mounted by hand", []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "mine",
				MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
		}}, "=default pull  mine"},
		{"sent again", []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-zzzzz"}}
		}}, "=default pull kube-api-access-zzzzz kube-api-access-zzzzz"},
		{"missing account", []func(*corev1.Pod){uses("nobody")},
			`error looking up service account ns/nobody: serviceaccounts "nobody" not found`},
		{"mirror", []func(*corev1.Pod){mirror}, "=   "},
		{"mirror with account", []func(*corev1.Pod){mirror, uses("default")}, "a mirror pod may not reference service accounts"},
		{"mirror with secret", []func(*corev1.Pod){mirror, secret("s")}, "a mirror pod may not reference secrets"},
		{"mirror with token", []func(*corev1.Pod){mirror, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "t",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}
		}}, "a mirror pod may not use ServiceAccountToken volume projections"},
		{"secret allowed", []func(*corev1.Pod){uses("strict"), secret("ok")}, "=strict  s "},
		{"secret not allowed", []func(*corev1.Pod){uses("strict"), secret("other")}, "does not reference that secret"},
	} {
		pod := newPod(c.change...)
		err := r.do(request{resource: "pods", now: pod})
		outcome, fine := strings.CutPrefix(c.want, "=")
		if !fine {
			expect(t, err, c.want)
			continue
		}
		expect(t, err, "")
		var pulls, volumes, mounts []string
		for _, s := range pod.Spec.ImagePullSecrets {
			pulls = append(pulls, s.Name)
		}
		for _, v := range pod.Spec.Volumes {
			volumes = append(volumes, v.Name)
		}
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			mounts = append(mounts, m.Name)
		}
		got := strings.Join([]string{pod.Spec.ServiceAccountName, strings.Join(pulls, ","), strings.Join(volumes, ","),
			strings.Join(mounts, ",")}, " ")
		if got != outcome {
			t.Errorf("%s: got %q, want %q", c.name, got, outcome)
		}
	}
}

func TestTokenVolume(t *testing.T) {
	got, err := json.Marshal(tokenVolume("kube-api-access-abcde"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"kube-api-access-abcde","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},` +
		`{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},` +
		`{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}],` +
		`"defaultMode":420}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFirstPodWaitsForItsAccount(t *testing.T) {
	r := newRig(t, newServiceAccount)
	done := make(chan error, 1)
	go func() { done <- r.do(request{resource: "pods", now: newPod()}) }()
	if _, err := r.client.CoreV1().ServiceAccounts("ns").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: named("ns", "default")},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, <-done, "")
	expect(t, r.do(request{resource: "pods", now: newPod(func(p *corev1.Pod) { p.Namespace = "empty" })}),
		"error looking up service account empty/default")
}

func TestRuntimeClass(t *testing.T) {
	overhead := corev1.ResourceList{"cpu": resource.MustParse("250m")}
	r := newRig(t, newRuntimeClass,
		&nodev1.RuntimeClass{ObjectMeta: named("", "vm"), Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: overhead},
			Scheduling: &nodev1.Scheduling{
				NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm", Operator: "Exists"}},
			}},
		&nodev1.RuntimeClass{ObjectMeta: named("", "plain"), Handler: "runc"},
	)
	in := func(class string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class }
	}
	pod := newPod(in("vm"))
	for range 2 {
		expect(t, r.do(request{resource: "pods", now: pod}), "")
		if pod.Spec.Overhead.Cpu().String() != "250m" || pod.Spec.NodeSelector["vm"] != "yes" || len(pod.Spec.Tolerations) != 1 {
			t.Errorf("pod spec %+v", pod.Spec)
		}
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{newPod(), ""}, {newPod(in("plain")), ""},
		{newPod(in("nope")), `pod rejected: RuntimeClass "nope" not found`},
		{newPod(in("vm"), func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1")} }),
			"doesn't match RuntimeClass's defined Overhead"},
		{newPod(in("vm"), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"vm": "no"} }),
			"pod rejected: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"},
		{newPod(func(p *corev1.Pod) { p.Spec.Overhead = overhead }),
			"Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{newPod(in("plain"), func(p *corev1.Pod) { p.Spec.Overhead = overhead }),
			"Pod Overhead set without corresponding RuntimeClass defined Overhead"},
	} {
		expect(t, r.do(request{resource: "pods", now: c.pod}), c.want)
	}
}

func TestTopology(t *testing.T) {
	r := newRig(t, newPodTopologyLabels, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "x",
	}}})
	binding := &corev1.Binding{ObjectMeta: named("ns", "p"), Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	expect(t, r.do(request{resource: "pods/binding", now: binding}), "")
	if fmt.Sprint(binding.Labels) != "map[topology.kubernetes.io/region:r topology.kubernetes.io/zone:z]" {
		t.Errorf("binding labels %v", binding.Labels)
	}
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		p.Labels = map[string]string{"topology.kubernetes.io/zone": "lie"}
	})
	expect(t, r.do(request{resource: "pods", now: pod}), "")
	if pod.Labels["topology.kubernetes.io/zone"] != "z" {
		t.Errorf("pod labels %v", pod.Labels)
	}
	expect(t, r.do(request{resource: "pods", now: newPod(func(p *corev1.Pod) { p.Spec.NodeName = "gone" })}), "")
}

func TestPodSecurity(t *testing.T) {
	space := func(level string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: level,
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
	}
	r := newRig(t, newPodSecurity, space("baseline"), space("privileged"), &corev1.Namespace{ObjectMeta: named("", "ns")})
	privileged := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	}
	in := func(ns string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = ns } }
	expect(t, r.do(request{resource: "pods", now: newPod(privileged)}), "")
	expect(t, r.do(request{resource: "pods", now: newPod(privileged, in("privileged"))}), "")
	expect(t, r.do(request{resource: "pods", now: newPod(in("baseline"))}), "")
	expect(t, r.do(request{resource: "pods", now: newPod(privileged, in("baseline"))}),
		`violates PodSecurity "baseline:latest": privileged`)
}
