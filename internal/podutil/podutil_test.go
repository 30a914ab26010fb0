package podutil

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPhases(t *testing.T) {
	for phase, terminal := range map[v1.PodPhase]bool{"": false, v1.PodPending: false, v1.PodRunning: false, v1.PodUnknown: false,
		v1.PodSucceeded: true, v1.PodFailed: true} {
		p := &v1.Pod{Status: v1.PodStatus{Phase: phase}}
		if Terminal(p) != terminal || Active(p) == terminal {
			t.Errorf("%q: terminal %v, active %v", phase, Terminal(p), Active(p))
		}
		p.DeletionTimestamp = &metav1.Time{}
		if Active(p) {
			t.Errorf("%q and being deleted: active", phase)
		}
	}
	if p := (&v1.Pod{}); Mirror(p) || Ready(p) {
		t.Error("an empty pod is a mirror or ready")
	}
	if p := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.MirrorPodAnnotationKey: ""}}}); !Mirror(p) {
		t.Error("a mirror pod is none")
	}
}

// A Node that names one CIDR only, as old clients wrote it, has that one.
func TestPodCIDRs(t *testing.T) {
	n := &v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24"}}
	if got := PodCIDRs(n); !slices.Equal(got, []string{"10.1.0.0/24"}) {
		t.Errorf("of podCIDR alone: %v", got)
	}
	n.Spec.PodCIDRs = []string{"10.1.0.0/24", "fd00::/64"}
	if got := PodCIDRs(n); !slices.Equal(got, n.Spec.PodCIDRs) {
		t.Errorf("of both fields: %v", got)
	}
	if got := PodCIDRs(&v1.Node{}); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}

// The first toleration that fits decides, and Lt and Gt compare numbers.
func TestTolerations(t *testing.T) {
	taint := &v1.Taint{Key: "load", Value: "70", Effect: v1.TaintEffectNoExecute}
	long := int64(300)
	for _, c := range []struct {
		what string
		list []v1.Toleration
		want int // the index that fits, -1 for none
	}{
		{"none", nil, -1},
		{"another value", []v1.Toleration{{Key: "load", Value: "71"}}, -1},
		{"another effect", []v1.Toleration{{Key: "load", Value: "70", Effect: v1.TaintEffectNoSchedule}}, -1},
		{"everything", []v1.Toleration{{Operator: v1.TolerationOpExists}}, 0},
		{"the second", []v1.Toleration{{Key: "other", Operator: v1.TolerationOpExists}, {Key: "load", Operator: v1.TolerationOpEqual,
			Value: "70"}}, 1},
		{"the first of two", []v1.Toleration{{Key: "load", Operator: v1.TolerationOpExists, TolerationSeconds: &long},
			{Operator: v1.TolerationOpExists}}, 0},
		{"a load below 80", []v1.Toleration{{Key: "load", Operator: v1.TolerationOpLt, Value: "80"}}, 0},
		{"a load below 70", []v1.Toleration{{Key: "load", Operator: v1.TolerationOpLt, Value: "70"}}, -1},
		{"a load above 9", []v1.Toleration{{Key: "load", Operator: v1.TolerationOpGt, Value: "9"}}, 0},
		{"no number", []v1.Toleration{{Key: "load", Operator: v1.TolerationOpGt, Value: "low"}}, -1},
		{"an operator nobody knows", []v1.Toleration{{Key: "load", Operator: "Near", Value: "70"}}, -1},
	} {
		got := Toleration(c.list, taint)
		if (c.want < 0) != (got == nil) || got != nil && got != &c.list[c.want] {
			t.Errorf("%s: %v", c.what, got)
		}
		if Tolerates(c.list, taint) != (got != nil) {
			t.Errorf("%s: Tolerates differs", c.what)
		}
	}
}
