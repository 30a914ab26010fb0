package clustermodel

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// Faults overlap: the end of one is not the end of another.
func TestOverlappingFaults(t *testing.T) {
	var h Host
	h.Off++
	h.Off++
	h.Off--
	if h.Works(0) || h.Alive() || !h.Faulty() {
		t.Error("works though one of two losses of power lasts")
	}
	h.Heal()
	h.Booted = time.Minute
	if h.Works(59*time.Second) || !h.Works(time.Minute) {
		t.Error("the agent works from the end of the boot on")
	}
	Toggle(&h.Cut)
	if h.Reaches(time.Hour) || !h.Works(time.Hour) {
		t.Error("a host that is cut off works and reaches nobody")
	}
	Toggle(&h.Cut)
	if !h.Reaches(time.Hour) || h.Faulty() {
		t.Error("toggled twice and not as before")
	}
	Set(&h.Paused, true)
	Set(&h.Paused, true)
	Set(&h.Paused, false)
	if !h.Works(time.Hour) {
		t.Error("a fault that is not there is no fault, however often it was set")
	}
	h.RenewEvery = time.Minute
	if !h.Faulty() {
		t.Error("slow renewals are a fault")
	}
}

// A condition keeps the time of its last transition while its status stays, and
// merging leaves what it merged alone.
func TestConditions(t *testing.T) {
	first, second := Seconds(Epoch), Seconds(Epoch.Add(1500*time.Millisecond))
	before := WithTransitions(Conditions(v1.ConditionTrue, first), nil)
	after := WithTransitions(Conditions(v1.ConditionFalse, second), before)
	n := &v1.Node{Status: v1.NodeStatus{Conditions: after}}
	if NodeReady(n) != v1.ConditionFalse || len(after) != 4 {
		t.Fatalf("conditions %v", after)
	}
	for _, c := range after {
		want := first
		if c.Type == v1.NodeReady {
			want = second
		}
		if !c.LastTransitionTime.Equal(&want) || !c.LastHeartbeatTime.Equal(&second) {
			t.Errorf("%s: heartbeat %s, transition %s", c.Type, c.LastHeartbeatTime, c.LastTransitionTime)
		}
	}
	if want := Epoch.Add(time.Second); !second.Time.Equal(want) {
		t.Errorf("%s is not in whole seconds", second)
	}
	merged := Merged(before, []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown},
		{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue}})
	if len(merged) != 5 || merged[3].Status != v1.ConditionUnknown || before[3].Status != v1.ConditionTrue {
		t.Errorf("merged %v; before %v", merged, before)
	}
	if NodeReady(&v1.Node{}) != "" {
		t.Error("a node without conditions has a Ready condition")
	}
}

// Pods made together share their conditions: making one ready leaves the others.
func TestSetPodReady(t *testing.T) {
	shared := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	a, b := &v1.Pod{Status: v1.PodStatus{Conditions: shared}}, &v1.Pod{Status: v1.PodStatus{Conditions: shared}}
	SetPodReady(a, v1.ConditionFalse, metav1.Time{})
	if podutil.Ready(a) || !podutil.Ready(b) || podutil.Ready(&v1.Pod{}) {
		t.Errorf("ready: %v, %v", podutil.Ready(a), podutil.Ready(b))
	}
}

func TestEvicts(t *testing.T) {
	for _, c := range []struct {
		key    string
		effect v1.TaintEffect
		want   bool
	}{{v1.TaintNodeUnreachable, v1.TaintEffectNoExecute, true}, {v1.TaintNodeNotReady, v1.TaintEffectNoExecute, true},
		{v1.TaintNodeNotReady, v1.TaintEffectNoSchedule, false}, {"own", v1.TaintEffectNoExecute, false}} {
		n := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: c.key, Effect: c.effect}}}}
		if got := Evicts(n); got != c.want {
			t.Errorf("%s:%s evicts: %v", c.key, c.effect, got)
		}
	}
}

func TestLeaseAsAnEvent(t *testing.T) {
	l := Lease{Renewed: Epoch, Written: Epoch.Add(time.Second), Version: 7, Lasts: 40 * time.Second}
	if e := l.Event("n"); e.Node != "n" || e.Renewed != l.Renewed || e.Written != l.Written || e.Version != 7 || e.Lasts != l.Lasts {
		t.Errorf("event %+v", e)
	}
}
