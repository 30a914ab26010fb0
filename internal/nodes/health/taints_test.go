package health

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNoSchedule(t *testing.T) {
	cond := func(kind v1.NodeConditionType, s v1.ConditionStatus) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: s}
	}
	node := func(conds []v1.NodeCondition, taints ...v1.Taint) v1.Node {
		return v1.Node{Spec: v1.NodeSpec{Taints: taints}, Status: v1.NodeStatus{Conditions: conds}}
	}
	conds := func(c ...v1.NodeCondition) []v1.NodeCondition { return c }
	old := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}
	foreign := v1.Taint{Key: "example.com/mine", Effect: v1.TaintEffectNoSchedule}
	execute := v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}
	for _, c := range []struct {
		name    string
		node    v1.Node
		want    string
		changed bool
	}{
		{"new node keeps the taint of its creation", v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{old}}}, "not-ready", false},
		{"ready", node(conds(cond(v1.NodeReady, v1.ConditionTrue)), old, foreign, execute), "mine unreachable/NoExecute", true},
		{"not ready", v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{cond(v1.NodeReady, v1.ConditionFalse)}}}, "not-ready",
			true},
		{"silent and under pressure", node(conds(cond(v1.NodeReady, v1.ConditionUnknown), cond(v1.NodeDiskPressure, v1.ConditionTrue)),
			old),
			"unreachable disk-pressure", true},
		{"cordoned", v1.Node{Spec: v1.NodeSpec{Unschedulable: true},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{cond(v1.NodeReady, v1.ConditionTrue)}}}, "unschedulable", true},
		{"nothing to do", node(conds(cond(v1.NodeReady, v1.ConditionTrue), cond(v1.NodeMemoryPressure, v1.ConditionFalse)), foreign),
			"mine", false},
	} {
		taints, changed := NoSchedule(&c.node, metav1.Now())
		var words []string
		for _, taint := range taints {
			w := taint.Key[strings.LastIndex(taint.Key, "/")+1:]
			if taint.Effect != v1.TaintEffectNoSchedule {
				w += "/" + string(taint.Effect)
			}
			words = append(words, w)
		}
		if got := strings.Join(words, " "); got != c.want || changed != c.changed {
			t.Errorf("%s: %q changed %v, want %q changed %v", c.name, got, changed, c.want, c.changed)
		}
	}
}
