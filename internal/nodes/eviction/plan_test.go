package eviction

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
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
		{"the first that fits counts", []v1.Taint{lost}, []v1.Toleration{exists(lost.Key, sec(300)), exists(lost.Key, sec(5))}, 300 * time.Second},
		{"the shortest of two taints", []v1.Taint{lost, mine}, []v1.Toleration{exists(lost.Key, sec(300)), exists("mine", sec(7))}, 7 * time.Second},
		{"another value", []v1.Taint{mine}, []v1.Toleration{{Key: "mine", Value: "b"}}, 0},
		{"another effect", []v1.Taint{lost}, []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}}, 0},
		{"negative seconds are now", []v1.Taint{lost}, []v1.Toleration{exists("", sec(-4))}, 0},
	} {
		p := Decide(c.taints, c.tolerations, func(v1.Taint) time.Time { return t0 })
		if p.Evict != (c.want >= 0) || p.Evict && p.At.Sub(t0) != c.want {
			t.Errorf("%s: %+v, want %s", c.name, p, c.want)
		}
	}
}
