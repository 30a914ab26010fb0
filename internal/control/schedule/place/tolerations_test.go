package place

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Placement judges tolerations as eviction does, with the operators of
// KEP-5471: a pod that may be on a node is not evicted from it at once.
func TestTolerationOperators(t *testing.T) {
	taint := v1.Taint{Key: "example.com/spot-risk", Value: "30", Effect: v1.TaintEffectNoExecute}
	for name, c := range map[string]struct {
		toleration v1.Toleration
		want       bool
	}{
		"equal":              {v1.Toleration{Key: taint.Key, Value: "30"}, true},
		"another value":      {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpEqual, Value: "31"}, false},
		"exists":             {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpExists}, true},
		"everything":         {v1.Toleration{Operator: v1.TolerationOpExists}, true},
		"another effect":     {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}, false},
		"less than 50":       {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpLt, Value: "50"}, true},
		"less than 30":       {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpLt, Value: "30"}, false},
		"greater than 10":    {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpGt, Value: "10"}, true},
		"greater than words": {v1.Toleration{Key: taint.Key, Operator: v1.TolerationOpGt, Value: "ten"}, false},
	} {
		if got := Tolerates([]v1.Taint{taint}, []v1.Toleration{c.toleration}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
