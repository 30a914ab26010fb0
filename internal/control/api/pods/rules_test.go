package pods

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func amounts(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestQOS(t *testing.T) {
	full := v1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "1", "memory", "1Gi")}
	half := v1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "2", "memory", "1Gi")}
	limitsOnly := v1.ResourceRequirements{Limits: amounts("cpu", "1", "memory", "1Gi")}
	cpuOnly := v1.ResourceRequirements{Requests: amounts("cpu", "1"), Limits: amounts("cpu", "1")}
	zero := v1.ResourceRequirements{Requests: amounts("cpu", "0"), Limits: amounts("memory", "0")}
	disk := v1.ResourceRequirements{Requests: amounts("ephemeral-storage", "1Gi")}
	for name, c := range map[string]struct {
		main, init []v1.ResourceRequirements
		pod        *v1.ResourceRequirements
		want       v1.PodQOSClass
	}{
		"nothing":                      {main: []v1.ResourceRequirements{{}}, want: v1.PodQOSBestEffort},
		"zeros count as nothing":       {main: []v1.ResourceRequirements{zero}, want: v1.PodQOSBestEffort},
		"other resources do not count": {main: []v1.ResourceRequirements{disk}, want: v1.PodQOSBestEffort},
		"equal":                        {main: []v1.ResourceRequirements{full}, want: v1.PodQOSGuaranteed},
		"limits alone":                 {main: []v1.ResourceRequirements{limitsOnly}, want: v1.PodQOSGuaranteed},
		"unequal":                      {main: []v1.ResourceRequirements{half}, want: v1.PodQOSBurstable},
		"only cpu":                     {main: []v1.ResourceRequirements{cpuOnly}, want: v1.PodQOSBurstable},
		"one container without":        {main: []v1.ResourceRequirements{full, {}}, want: v1.PodQOSBurstable},
		"init container without": {main: []v1.ResourceRequirements{full}, init: []v1.ResourceRequirements{{}},
			want: v1.PodQOSBurstable},
		"pod level replaces":       {main: []v1.ResourceRequirements{{}}, pod: &full, want: v1.PodQOSGuaranteed},
		"empty pod level does not": {main: []v1.ResourceRequirements{full}, pod: &v1.ResourceRequirements{}, want: v1.PodQOSGuaranteed},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Resources: c.pod}}
		for _, r := range c.main {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: r})
		}
		for _, r := range c.init {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{Resources: r})
		}
		if got := qos(pod); got != c.want {
			t.Errorf("%s: QOS is %s, want %s", name, got, c.want)
		}
	}
}

func TestGraceFor(t *testing.T) {
	for name, c := range map[string]struct {
		node      string
		phase     v1.PodPhase
		spec, ask *int64
		want      int64
	}{
		"the pod's":               {node: "n", phase: v1.PodRunning, spec: ptr.To[int64](30), want: 30},
		"the request's":           {node: "n", phase: v1.PodRunning, spec: ptr.To[int64](30), ask: ptr.To[int64](5), want: 5},
		"zero asked":              {node: "n", phase: v1.PodRunning, spec: ptr.To[int64](30), ask: ptr.To[int64](0), want: 0},
		"nobody says":             {node: "n", phase: v1.PodRunning, want: 0},
		"no node":                 {phase: v1.PodPending, spec: ptr.To[int64](30), ask: ptr.To[int64](60), want: 0},
		"succeeded":               {node: "n", phase: v1.PodSucceeded, spec: ptr.To[int64](30), want: 0},
		"failed":                  {node: "n", phase: v1.PodFailed, spec: ptr.To[int64](30), want: 0},
		"negative in the pod":     {node: "n", phase: v1.PodRunning, spec: ptr.To[int64](-4), want: 1},
		"negative in the request": {node: "n", phase: v1.PodRunning, spec: ptr.To[int64](30), ask: ptr.To[int64](-4), want: 1},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{NodeName: c.node, TerminationGracePeriodSeconds: c.spec}, Status: v1.PodStatus{Phase: c.phase}}
		if got := graceFor(pod, c.ask); got != c.want {
			t.Errorf("%s: grace is %d, want %d", name, got, c.want)
		}
	}
}

func TestMatchLabelKeys(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"hash": "abc", "team": "a"}}}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{}, MatchLabelKeys: []string{"hash", "absent"}, MismatchLabelKeys: []string{"team"},
		}, {MatchLabelKeys: []string{"hash"}}},
	}}
	mergeMatchLabelKeys(pod)
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if got, want := metav1.FormatLabelSelector(terms[0].LabelSelector), "hash in (abc),team notin (a)"; got != want {
		t.Errorf("selector is %q, want %q", got, want)
	}
	if terms[1].LabelSelector != nil {
		t.Errorf("a term without selector matches nothing and must keep doing so, got %v", terms[1].LabelSelector)
	}
}

func TestKeepForStatus(t *testing.T) {
	old := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Name: "rs"}}},
		Spec:       v1.PodSpec{NodeName: "n"},
		Status: v1.PodStatus{QOSClass: v1.PodQOSBurstable, ObservedGeneration: 3,
			Conditions: []v1.PodCondition{{Type: v1.PodReady, ObservedGeneration: 3}}},
	}
	pod := &v1.Pod{
		Spec: v1.PodSpec{NodeName: "other"},
		Status: v1.PodStatus{PodIP: "10.0.0.9", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []v1.PodCondition{{Type: v1.PodReady}, {Type: v1.PodInitialized}}},
	}
	keepForStatus(pod, old)
	s := pod.Status
	switch {
	case pod.Spec.NodeName != "n", len(pod.OwnerReferences) != 1:
		t.Errorf("a status write changed spec or owners: %+v", pod)
	case s.QOSClass != v1.PodQOSBurstable, s.ObservedGeneration != 3, s.Conditions[0].ObservedGeneration != 3,
		s.Conditions[1].ObservedGeneration != 0:
		t.Errorf("cleared fields were not filled back: %+v", s)
	case len(s.PodIPs) != 1 || s.PodIPs[0].IP != "10.0.0.9":
		t.Errorf("podIPs is %v, want the one in podIP", s.PodIPs)
	}
}

func TestPickContainer(t *testing.T) {
	one := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}}
	many := one.DeepCopy()
	many.Spec.Containers = append(many.Spec.Containers, v1.Container{Name: "b"})
	many.Spec.InitContainers = []v1.Container{{Name: "i"}}
	many.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"}}}
	for _, c := range []struct {
		pod            *v1.Pod
		ask, want, err string
	}{
		{one, "", "a", ""},
		{one, "x", "", "container x is not valid for pod p"},
		{many, "b", "b", ""}, {many, "i", "i", ""}, {many, "e", "e", ""},
		{many, "", "", "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i] or one of " +
			"the ephemeral containers: [e]"},
		{&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "", "", "a container name must be specified for pod p"},
	} {
		got, err := pickContainer(c.pod, c.ask)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != c.want || text != c.err {
			t.Errorf("picking %q: got %q, %q; want %q, %q", c.ask, got, text, c.want, c.err)
		}
	}
}

func BenchmarkPrepareNew(b *testing.B) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{
		{Resources: v1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "1", "memory", "1Gi")}},
	}}}
	b.ReportAllocs()
	for b.Loop() {
		prepareNew(pod, metav1.Unix(1, 0))
	}
}
