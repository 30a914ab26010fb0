package admit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func quantities(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func rangeOf(name string, items ...corev1.LimitRangeItem) *corev1.LimitRange {
	return &corev1.LimitRange{ObjectMeta: named("ns", name), Spec: corev1.LimitRangeSpec{Limits: items}}
}

func TestLimitDefaults(t *testing.T) {
	r := newRig(t, newLimitRanger,
		rangeOf("b", corev1.LimitRangeItem{Type: "Container", Default: quantities("cpu", "9", "memory", "1Gi")}),
		rangeOf("a", corev1.LimitRangeItem{Type: "Container", Default: quantities("cpu", "2"), DefaultRequest: quantities("cpu", "1",
			"memory", "5Mi")}))
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: quantities("cpu", "3")}}}
	})
	expect(t, r.do(request{resource: "pods", now: pod}), "")
	c, i := pod.Spec.Containers[0].Resources, pod.Spec.InitContainers[0].Resources
	if c.Requests.Cpu().String() != "1" || c.Limits.Cpu().String() != "2" || c.Limits.Memory().String() != "1Gi" ||
		i.Requests.Cpu().String() != "3" || i.Requests.Memory().String() != "5Mi" {
		t.Errorf("container %v, init container %v", c, i)
	}
	if got, want := pod.Annotations["kubernetes.io/limit-ranger"],
		"LimitRanger plugin set: memory limit for container c; memory limit for init container i"; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
}

func TestLimitChecks(t *testing.T) {
	r := newRig(t, newLimitRanger, rangeOf("all",
		corev1.LimitRangeItem{Type: "Container", Min: quantities("cpu", "100m"), Max: quantities("cpu", "2"),
			MaxLimitRequestRatio: quantities("cpu", "4")},
		corev1.LimitRangeItem{Type: "Pod", Max: quantities("memory", "1Gi")},
		corev1.LimitRangeItem{Type: "PersistentVolumeClaim", Min: quantities("storage", "1Gi"), Max: quantities("storage", "10Gi")}))
	pod := func(request, limit, memory string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			res := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: quantities("memory", memory)}
			if request != "" {
				res.Requests = quantities("cpu", request)
			}
			if limit != "" {
				res.Limits["cpu"] = resource.MustParse(limit)
			}
			p.Spec.Containers = []corev1.Container{{Name: "a", Resources: res}}
		})
	}
	two := pod("1", "1", "600Mi")
	two.Spec.Containers = append(two.Spec.Containers, two.Spec.Containers[0])
	claim := func(size string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "c")}
		if size != "" {
			c.Spec.Resources.Requests = quantities("storage", size)
		}
		return c
	}
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"fits", request{resource: "pods", now: pod("1", "2", "1Gi")}, ""},
		{"request too small", request{resource: "pods", now: pod("50m", "100m", "1Gi")},
			"minimum cpu usage per Container is 100m, but request is 50m"},
		{"limit too big", request{resource: "pods", now: pod("1", "3", "1Gi")}, "maximum cpu usage per Container is 2, but limit is 3"},
		{"no request", request{resource: "pods", now: pod("", "1", "1Gi")},
			"minimum cpu usage per Container is 100m.  No request is specified"},
		{"no limit", request{resource: "pods", now: pod("1", "", "1Gi")}, "maximum cpu usage per Container is 2.  No limit is specified"},
		{"ratio", request{resource: "pods", now: pod("100m", "1", "1Gi")},
			"cpu max limit to request ratio per Container is 4, but provided ratio is 10.000000"},
		{"sum too big", request{resource: "pods", now: two}, "maximum memory usage per Pod is 1Gi, but limit is 1200Mi"},
		{"resize", request{resource: "pods/resize", now: pod("1", "3", "1Gi"), old: pod("1", "1", "1Gi")},
			"maximum cpu usage per Container is 2, but limit is 3"},
		{"update", request{resource: "pods", now: pod("1", "3", "1Gi"), old: pod("1", "3", "1Gi")}, ""},
		{"claim", request{resource: "persistentvolumeclaims", now: claim("5Gi")}, ""},
		{"claim too small", request{resource: "persistentvolumeclaims", now: claim("5Mi")},
			"minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 5Mi"},
		{"claim too big", request{resource: "persistentvolumeclaims", now: claim("50Gi"), old: claim("5Gi")},
			"maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 50Gi"},
		{"claim was always big", request{resource: "persistentvolumeclaims", now: claim("50Gi"), old: claim("50Gi")}, ""},
		{"claim without size", request{resource: "persistentvolumeclaims", now: claim("")}, "No request is specified"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, r.do(c.request), c.want) })
	}
}
