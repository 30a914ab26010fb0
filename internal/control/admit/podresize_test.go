package admit

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodResizeChecks(t *testing.T) {
	node := func(name, os string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: os}},
			Status:     corev1.NodeStatus{Allocatable: quantities("cpu", "2", "memory", "1Gi")},
		}
	}
	r := newRig(t, newPodResizeValidator, node("n", "linux"), node("w", "windows"))
	pod := func(node string, generation int64, cpu, memory string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.Generation = node, generation
			p.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Requests: quantities("cpu", cpu,
				"memory", memory)}}}
		})
	}
	old := pod("n", 1, "1", "1Gi")
	for _, c := range []struct {
		name string
		request
		want  string
		cause metav1.CauseType
	}{
		{"fits", request{resource: "pods/resize", now: pod("n", 2, "2", "1Gi"), old: old}, "", ""},
		{"cpu", request{resource: "pods/resize", now: pod("n", 2, "2500m", "1Gi"), old: old},
			"node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000", causeCapacity},
		{"both", request{resource: "pods/resize", now: pod("n", 2, "3", "2Gi"), old: old},
			"allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824", causeCapacity},
		{"nothing changed", request{resource: "pods/resize", now: pod("n", 1, "3", "2Gi"), old: old}, "", ""},
		{"not bound", request{resource: "pods/resize", now: pod("", 2, "3", "2Gi"), old: old}, "", ""},
		{"not a resize", request{resource: "pods", now: pod("n", 2, "3", "2Gi"), old: old}, "", ""},
		{"no such node", request{resource: "pods/resize", now: pod("gone", 2, "1", "1Gi"), old: old}, `node "gone" not found`, ""},
		{"another system", request{resource: "pods/resize", now: pod("w", 2, "1", "1Gi"), old: old},
			`only supported on linux nodes, node "w" is "windows"`, causePlatform},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := r.do(c.request)
			expect(t, err, c.want)
			var status *apierrors.StatusError
			if c.cause != "" && (!errors.As(err, &status) || status.ErrStatus.Reason != metav1.StatusReasonForbidden ||
				status.ErrStatus.Details.Causes[0].Type != c.cause) {
				t.Errorf("error %v carries %+v, want the cause %s", err, status, c.cause)
			}
		})
	}
}
