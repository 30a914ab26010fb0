package pod

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestWork: the words of the metric of working pods, which upstream's node
// suite reads one by one, zeros too.
func TestWork(t *testing.T) {
	for _, c := range []struct {
		spec   spec
		phase  v1.PodPhase
		ending bool
		want   work
	}{
		{spec{}, v1.PodRunning, false, work{"sync", "desired", ""}},
		{spec{Static: true}, v1.PodRunning, false, work{"sync", "desired", "true"}},
		{spec{}, v1.PodRunning, true, work{"terminating", "desired", ""}},
		{spec{Static: true, Removed: true}, v1.PodRunning, true, work{"terminating", "orphan", "true"}},
		{spec{}, v1.PodSucceeded, true, work{"terminated", "desired", ""}},
		{spec{Orphan: true}, v1.PodRunning, true, work{"terminating", "runtime_only", "unknown"}},
	} {
		got := workOn(c.spec, c.phase, c.ending)
		if got != c.want {
			t.Errorf("%+v %s: %+v, want %+v", c.spec, c.phase, got, c.want)
		}
		if n, known := noWork()[got]; !known || n != 0 {
			t.Errorf("%+v is not shown while nobody does it", got)
		}
	}
	if n := len(noWork()); n != 15 {
		t.Errorf("there are %d kinds of work", n)
	}
}
