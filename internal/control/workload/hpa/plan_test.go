package hpa

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

var start = time.Unix(1_000_000, 0)

// target is a cluster of one autoscaler in virtual time.
type target struct {
	in   input
	load func(t *target) // sets the readings before each round
}

func percent(n int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: v1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &n}}}
}

func quantity(s string) *resource.Quantity { q := resource.MustParse(s); return &q }

func newTarget(replicas int32, metrics ...autoscalingv2.MetricSpec) *target {
	one := int32(1)
	t := &target{in: input{Now: start, Settings: DefaultSettings, Scale: &targetScale{Selector: "app=web"},
		HPA: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: &one, MaxReplicas: 10, Metrics: metrics}}}}
	t.resize(replicas)
	return t
}

// resize makes the pods of the target: each asks for a whole CPU, has been
// ready for an hour, and its value is a minute of usage.
func (t *target) resize(n int32) {
	t.in.Scale.Spec, t.in.Scale.Status = n, n
	t.in.Pods = nil
	for i := range n {
		t.in.Pods = append(t.in.Pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)},
			Spec: v1.PodSpec{Containers: []v1.Container{{Name: "web",
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}},
			Status: v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: start.Add(-time.Hour)},
				Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(start.Add(-time.Hour))}}}})
	}
}

// use gives each pod a value, in thousandths; nil Values of a pod are missing.
func (t *target) use(values ...int64) {
	read := reading{Pods: map[string]podValue{}}
	for i, v := range values {
		if v >= 0 {
			read.Pods[fmt.Sprint("web-", i)] = podValue{Milli: v, At: t.in.Now, Window: time.Minute}
		}
	}
	t.in.Readings = []reading{read}
}

// same gives every pod one value.
func (t *target) same(v int64) {
	var all []int64
	for range t.in.Pods {
		all = append(all, v)
	}
	t.use(all...)
}

// round plans, does what the plan says, and shows it on one line.
func (t *target) round(after time.Duration) string {
	t.in.Now = t.in.Now.Add(after)
	if t.load != nil {
		t.load(t)
	}
	current := t.in.Scale.Spec
	out := plan(t.in)
	if out.Rescale {
		out = out.Rescaled(t.in.Now, current, nil)
		t.resize(out.Replicas)
	}
	t.in.HPA.Status, t.in.History = out.Status, out.History
	var b strings.Builder
	fmt.Fprintf(&b, "%d -> %d", current, out.Status.DesiredReplicas)
	for _, c := range out.Status.Conditions {
		fmt.Fprintf(&b, " %s=%s(%s)", c.Type, c.Status, c.Reason)
	}
	for _, e := range out.Events {
		fmt.Fprintf(&b, "\n    %s: %s", e.Reason, e.Message)
	}
	return b.String()
}

// story is one transcript: a name, and its rounds.
type story struct {
	name string
	run  func(say func(string, ...any))
}

var stories = []story{
	{"load doubles, then falls", func(say func(string, ...any)) {
		t := newTarget(2, percent(50))
		t.same(500)
		say("at its target: %s", t.round(0))
		t.same(1000)
		say("twice the load: %s", t.round(15*time.Second))
		t.same(100)
		say("a fifth: %s", t.round(15*time.Second))
		t.same(100)
		say("a fifth, four minutes later: %s", t.round(4*time.Minute))
		t.same(100)
		say("and after five: %s", t.round(2*time.Minute))
	}},
	{"no step up is greater than double or four", func(say func(string, ...any)) {
		t := newTarget(1, percent(10))
		t.load = func(t *target) { t.same(1000) }
		for range 4 {
			say("%s", t.round(15*time.Second))
		}
	}},
	{"within the tolerance nothing changes", func(say func(string, ...any)) {
		for _, use := range []int64{449, 450, 500, 550, 551} {
			t := newTarget(10, percent(50))
			t.in.HPA.Spec.MaxReplicas = 20
			t.in.Settings.DownscaleStabilization = 0
			t.same(use)
			say("%d of 500: %s", use, t.round(0))
		}
	}},
	{"a tolerance of its own for each direction", func(say func(string, ...any)) {
		t := newTarget(4, percent(50))
		t.in.Settings.DownscaleStabilization = 0
		t.in.HPA.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: quantity(
			"0.5")},
			ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: quantity("0")}}
		t.same(700)
		say("up, tolerated: %s", t.round(0))
		t.same(370)
		say("down, not: %s", t.round(time.Second))
	}},
	{"a pod without a value", func(say func(string, ...any)) {
		t := newTarget(4, percent(50))
		t.in.Settings.DownscaleStabilization = 0
		t.use(1000, 1000, 1000, -1)
		say("counts as idle on the way up: %s", t.round(0))
		t = newTarget(4, percent(50))
		t.in.Settings.DownscaleStabilization = 0
		t.use(300, 300, 300, -1)
		say("counts as busy on the way down: %s", t.round(0))
		t.use(-1, -1, -1, -1)
		say("none has one: %s", t.round(time.Second))
	}},
	{"a pod that starts", func(say func(string, ...any)) {
		t := newTarget(3, percent(50))
		t.in.Pods[2].Status.StartTime = &metav1.Time{Time: start.Add(-time.Minute)}
		t.in.Pods[2].Status.Conditions[0] = v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(start.Add(-time.Second))}
		t.use(600, 600, 4000)
		say("its processor time counts for nothing: %s", t.round(0))
		t = newTarget(3, autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: v1.ResourceMemory,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("1")}}})
		t.in.Pods[2].Status.StartTime = &metav1.Time{Time: start.Add(-time.Minute)}
		t.use(1000, 1000, 4000)
		say("its memory counts: %s", t.round(0))
	}},
	{"bounds", func(say func(string, ...any)) {
		t := newTarget(20, percent(50))
		say("above the maximum: %s", t.round(0))
		three := int32(3)
		t = newTarget(1, percent(50))
		t.in.HPA.Spec.MinReplicas = &three
		say("below the minimum: %s", t.round(0))
		t = newTarget(8, percent(50))
		t.same(900)
		say("more than the maximum wanted: %s", t.round(0))
	}},
	{"scaled to zero by hand", func(say func(string, ...any)) {
		t := newTarget(0, percent(50))
		say("%s", t.round(0))
	}},
	{"to zero and back by a queue", func(say func(string, ...any)) {
		zero := int32(0)
		t := newTarget(2, autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("10")}}})
		t.in.HPA.Spec.MinReplicas, t.in.Settings.DownscaleStabilization = &zero, 0
		t.in.Readings = []reading{{Values: []int64{0}}}
		say("an empty queue: %s", t.round(0))
		say("still empty: %s", t.round(15*time.Second))
		t.in.Readings = []reading{{Values: []int64{15_000, 10_000}}}
		say("25 waiting: %s", t.round(15*time.Second))
	}},
	{"one metric of two fails", func(say func(string, ...any)) {
		other := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "rps"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("100")}}}
		t := newTarget(2, percent(50), other)
		t.load = func(t *target) { t.in.Readings = append(t.in.Readings[:1], reading{Err: fmt.Errorf("no such metric")}) }
		t.same(900)
		say("up is allowed: %s", t.round(0))
		t.same(100)
		say("down is not: %s", t.round(10*time.Minute))
	}},
	{"policies", func(say func(string, ...any)) {
		t := newTarget(10, percent(50))
		t.in.HPA.Spec.MaxReplicas = 100
		lowest := autoscalingv2.MinChangePolicySelect
		window := int32(0)
		t.in.HPA.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp: &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy,
				Value: 4, PeriodSeconds: 60}}},
			ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &lowest,
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 50, PeriodSeconds: 60},
					{Type: autoscalingv2.PodsScalingPolicy, Value: 3, PeriodSeconds: 60}}}}
		t.load = func(t *target) { t.same(1000) }
		say("four a minute: %s", t.round(0))
		say("and no more: %s", t.round(15*time.Second))
		say("until the minute is over: %s", t.round(46*time.Second))
		t.load = func(t *target) { t.same(10) }
		say("three a minute on the way down: %s", t.round(10*time.Minute))
		say("and no more: %s", t.round(15*time.Second))
		disabled := autoscalingv2.DisabledPolicySelect
		t.in.HPA.Spec.Behavior.ScaleDown.SelectPolicy = &disabled
		say("disabled: %s", t.round(10*time.Minute))
	}},
	{"stabilised on the way up", func(say func(string, ...any)) {
		t := newTarget(2, percent(50))
		window := int32(60)
		t.in.HPA.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: &window}}
		t.load = func(t *target) { t.same(1000) }
		say("a peak: %s", t.round(0))
		say("that lasts: %s", t.round(61*time.Second))
	}},
	{"selectors", func(say func(string, ...any)) {
		t := newTarget(2, percent(50))
		t.in.Scale.Selector = ""
		say("none: %s", t.round(0))
		t.in.Scale.Selector = "a in ("
		say("bad: %s", t.round(0))
		t.in.Scale.Selector, t.in.Rivals = "app=web", []string{"other"}
		say("shared: %s", t.round(0))
	}},
	{"no scale", func(say func(string, ...any)) {
		t := newTarget(2, percent(50))
		t.in.Scale, t.in.ScaleError = nil, fmt.Errorf("deployments.apps \"web\" not found")
		out := plan(t.in)
		say("%s %v", out.Status.Conditions[0].Message, out.Events)
	}},
	{"no request", func(say func(string, ...any)) {
		t := newTarget(1, percent(50))
		t.in.Pods[0].Spec.Containers[0].Resources.Requests = nil
		t.same(100)
		say("%s", t.round(0))
	}},
	{"an object's metric", func(say func(string, ...any)) {
		t := newTarget(3, autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web"},
			Metric:          autoscalingv2.MetricIdentifier{Name: "hits"},
			Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: quantity("20")}}})
		t.in.Readings = []reading{{Values: []int64{33_000}}}
		say("%s", t.round(0))
	}},
}

// TestTranscripts compares every story with its transcript.
func TestTranscripts(t *testing.T) {
	var b strings.Builder
	for _, s := range stories {
		fmt.Fprintf(&b, "== %s\n", s.name)
		s.run(func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) })
	}
	golden.Check(t, "testdata/transcripts.txt", b.String())
}

// TestProperties: whatever pods, values and bounds there are, the outcome is
// within the bounds, a round without change asks for none, and a restart takes
// no replicas.
func TestProperties(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 2))
	for range 3000 {
		x := newTarget(r.Int32N(15), percent(1+r.Int32N(100)))
		least, most := r.Int32N(5), 5+r.Int32N(20)
		x.in.HPA.Spec.MinReplicas, x.in.HPA.Spec.MaxReplicas = &least, most
		var values []int64
		for i, p := range x.in.Pods {
			values = append(values, r.Int64N(3000)-200)
			switch r.IntN(8) {
			case 0:
				p.Status.Phase = v1.PodPending
			case 1:
				p.DeletionTimestamp = &metav1.Time{Time: start}
			case 2:
				p.Status.Conditions[0].Status = v1.ConditionFalse
			case 3:
				values[i] = -1
			}
		}
		x.use(values...)
		current := x.in.Scale.Spec
		out := plan(x.in)
		n := out.Replicas
		if !out.Rescale {
			continue
		}
		if n < least || n > most {
			t.Fatalf("seed %d: %d replicas of %d to %d", seed, n, least, most)
		}
		if n == current {
			t.Fatalf("seed %d: a change to the same size", seed)
		}
		if n < current && current <= most {
			t.Fatalf("seed %d: the first round after a start takes replicas: %d of %d", seed, n, current)
		}
		if n > current && current > 0 && current >= least && n > max(2*current, 4) {
			t.Fatalf("seed %d: a step from %d to %d", seed, current, n)
		}
	}
}

// TestMoreLoadNeverMeansFewer: of two loads on the same target, the greater
// asks for at least as many replicas.
func TestMoreLoadNeverMeansFewer(t *testing.T) {
	for n := int32(1); n <= 10; n++ {
		last := int32(0)
		for use := int64(0); use < 3000; use += 7 {
			x := newTarget(n, percent(50))
			x.in.Settings.DownscaleStabilization = 0
			x.same(use)
			if use == 0 {
				continue
			}
			out := plan(x.in)
			if out.Status.DesiredReplicas < last {
				t.Fatalf("%d replicas at %d: %d, was %d", n, use, out.Status.DesiredReplicas, last)
			}
			last = out.Status.DesiredReplicas
		}
	}
}
