package eviction

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDecide(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sec := func(n int64) *int64 { return &n }
	lost := v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}
	mine := v1.Taint{Key: "mine", Value: "a", Effect: v1.TaintEffectNoExecute}
	soft := v1.Taint{Key: "soft", Effect: v1.TaintEffectNoSchedule}
	exists := func(key string, s *int64) v1.Toleration {
		return v1.Toleration{Key: key, Operator: v1.TolerationOpExists, TolerationSeconds: s}
	}
	for _, c := range []struct {
		name        string
		taints      []v1.Taint
		tolerations []v1.Toleration
		want        time.Duration // -1: never
	}{
		{"no taint", []v1.Taint{soft}, nil, -1},
		{"not tolerated", []v1.Taint{lost}, nil, 0},
		{"for ever", []v1.Taint{lost}, []v1.Toleration{exists("", nil)}, -1},
		{"300 s", []v1.Taint{lost}, []v1.Toleration{exists(lost.Key, sec(300))}, 300 * time.Second},
		{"the first that fits counts", []v1.Taint{lost}, []v1.Toleration{exists(lost.Key, sec(300)), exists(lost.Key, sec(5))},
			300 * time.Second},
		{"the shortest of two taints", []v1.Taint{lost, mine}, []v1.Toleration{exists(lost.Key, sec(300)), exists("mine", sec(7))},
			7 * time.Second},
		{"another value", []v1.Taint{mine}, []v1.Toleration{{Key: "mine", Value: "b"}}, 0},
		{"another effect", []v1.Taint{lost}, []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}, 0},
		{"negative seconds are now", []v1.Taint{lost}, []v1.Toleration{exists("", sec(-4))}, 0},
	} {
		p := decide(c.taints, c.tolerations, func(v1.Taint) time.Time { return t0 })
		if p.Evict != (c.want >= 0) || p.Evict && p.At.Sub(t0) != c.want {
			t.Errorf("%s: %+v, want %s", c.name, p, c.want)
		}
	}
}

// A taint's time counts and not that of who looks, so a restart moves nothing;
// a pod that came after the taint has its whole toleration from then.
func TestForCountsFromTaintOrBinding(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) *metav1.Time { return &metav1.Time{Time: t0.Add(time.Duration(s) * time.Second)} }
	seconds := int64(60)
	for _, c := range []struct {
		name         string
		added        *metav1.Time
		bound, first int
		want         int
	}{
		{"tainted before we looked", at(0), -100, 50, 60},
		{"tainted without a time", nil, -100, 50, 110},
		{"tainted by a clock that is ahead", at(90), -100, 50, 110},
		{"tainted again while nobody looked", at(55), -100, 50, 115},
		{"came after the taint", at(0), 30, 50, 90},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}},
			Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue,
				LastTransitionTime: *at(c.bound)}}}}
		n := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "x", Effect: v1.TaintEffectNoExecute, TimeAdded: c.added}}}}
		if got := For(p, n, at(c.first).Time, at(70).Time).At.Sub(t0); got != time.Duration(c.want)*time.Second {
			t.Errorf("%s: due at %s, want %d s", c.name, got, c.want)
		}
	}
}
