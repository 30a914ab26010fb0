package pods_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

const ns = "default"

// fixture is one running server with a fake agent behind the node "here".
type fixture struct {
	kubernetes.Interface
	config *rest.Config
	agent  *agent
	as     func(t *testing.T, user string, groups ...string) *rest.Config
}

// TestPods runs all behaviours against one server, each with pods of its own names.
func TestPods(t *testing.T) {
	agent := newAgent(t)
	env := apitest.StartEnv(t, apitest.WithConfig(agent.trust()))
	f := &fixture{
		Interface: kubernetes.NewForConfigOrDie(env.Config), config: env.Config, agent: agent,
		as: func(t *testing.T, user string, groups ...string) *rest.Config { return env.As(t, user, groups...) },
	}
	agent.register(t, f)
	f.accounts(t, "default", "someone")
	for name, test := range map[string]func(*testing.T, *fixture){
		"create":             testCreate,
		"update":             testUpdate,
		"status":             testStatus,
		"binding":            testBinding,
		"graceful delete":    testGracefulDelete,
		"immediate delete":   testImmediateDelete,
		"eviction free":      testEvictionFree,
		"eviction budget":    testEvictionBudget,
		"eviction unhealthy": testEvictionUnhealthy,
		"eviction race":      testEvictionRace,
		"resize":             testResize,
		"ephemeral":          testEphemeral,
		"read-only sessions": testReadOnlySessions,
		"peers of a node":    testNodePeers,
		"node proxy session": testNodeProxySessions,
		"local volume calls": testLocalVolumesCalls,
		"log":                testLog,
		"log follow":         testLogFollow,
		"exec":               testExec,
		"attach":             testAttach,
		"port forward":       testPortForward,
		"proxy":              testProxy,
		"node proxy":         testNodeProxy,
	} {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
}

// accounts creates the service accounts that pods name; admission wants them,
// and nothing here makes them.
func (f *fixture) accounts(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		a := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}, AutomountServiceAccountToken: ptr.To(false)}
		if _, err := f.CoreV1().ServiceAccounts(ns).Create(bg(), a, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func bg() context.Context { return context.Background() }

func newPod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "example.test/app:1"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func (f *fixture) create(t *testing.T, p *v1.Pod) *v1.Pod {
	t.Helper()
	out, err := f.CoreV1().Pods(ns).Create(bg(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating pod %s: %v", p.Name, err)
	}
	return out
}

func (f *fixture) get(t *testing.T, name string) *v1.Pod {
	t.Helper()
	out, err := f.CoreV1().Pods(ns).Get(bg(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("getting pod %s: %v", name, err)
	}
	return out
}

func (f *fixture) gone(t *testing.T, name string) {
	t.Helper()
	if p, err := f.CoreV1().Pods(ns).Get(bg(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("pod %s is still there: %+v, %v", name, p, err)
	}
}

func onNode(p *v1.Pod) { p.Spec.NodeName = "here" }

// running makes a pod on the node with the given readiness.
func (f *fixture) running(t *testing.T, name string, ready bool, change ...func(*v1.Pod)) *v1.Pod {
	t.Helper()
	p := f.create(t, newPod(name, append(change, onNode)...))
	return f.setStatus(t, p, func(s *v1.PodStatus) {
		s.Phase = v1.PodRunning
		s.PodIP = "10.1.2.3"
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}
		if ready {
			s.Conditions[0].Status = v1.ConditionTrue
		}
	})
}

func (f *fixture) setStatus(t *testing.T, p *v1.Pod, change func(*v1.PodStatus)) *v1.Pod {
	t.Helper()
	p = p.DeepCopy()
	change(&p.Status)
	out, err := f.CoreV1().Pods(ns).UpdateStatus(bg(), p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("writing status of pod %s: %v", p.Name, err)
	}
	return out
}

func condition(p *v1.Pod, typ v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == typ {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func status(t *testing.T, err error) metav1.Status {
	t.Helper()
	s, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("want an API error, got %v", err)
	}
	return s.Status()
}

func testCreate(t *testing.T, f *fixture) {
	p := f.create(t, newPod("fresh", func(p *v1.Pod) {
		p.Status.Phase = v1.PodRunning
		p.Generation = 7
		p.Spec.ServiceAccountName = "someone"
	}))
	if p.Status.Phase != v1.PodPending || p.Status.QOSClass != v1.PodQOSBestEffort || p.Generation != 1 {
		t.Errorf("new pod has phase %s, class %s, generation %d", p.Status.Phase, p.Status.QOSClass, p.Generation)
	}
	if p.Spec.DeprecatedServiceAccount != "someone" {
		t.Errorf("serviceAccount is %q, want it to mirror serviceAccountName", p.Spec.DeprecatedServiceAccount)
	}
	gated := f.create(t, newPod("gated", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.test/wait"}} }))
	c := condition(gated, v1.PodScheduled)
	if c == nil || c.Status != v1.ConditionFalse || c.Reason != "SchedulingGated" ||
		c.Message != "Scheduling is blocked due to non-empty scheduling gates" {
		t.Errorf("gated pod has condition %+v", c)
	}
	_, err := f.CoreV1().Pods(ns).Update(bg(), newPod("absent"), metav1.UpdateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a PUT to a missing pod gave %v, want NotFound", err)
	}
}

func testUpdate(t *testing.T, f *fixture) {
	p := f.create(t, newPod("changing"))
	p.Labels = map[string]string{"a": "b"}
	p.Status.Phase = v1.PodFailed
	p, err := f.CoreV1().Pods(ns).Update(bg(), p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Generation != 1 || p.Status.Phase != v1.PodPending {
		t.Errorf("a label change made generation %d, phase %s", p.Generation, p.Status.Phase)
	}
	p.Spec.Containers[0].Image = "example.test/app:2"
	if p, err = f.CoreV1().Pods(ns).Update(bg(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if p.Generation != 2 {
		t.Errorf("an image change made generation %d, want 2", p.Generation)
	}
}

func testStatus(t *testing.T, f *fixture) {
	p := f.create(t, newPod("reporting", onNode))
	p = f.setStatus(t, p, func(s *v1.PodStatus) {
		s.ObservedGeneration = 1
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, ObservedGeneration: 1}}
	})
	p.Spec.Containers[0].Image = "example.test/other:1"
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "here", UID: "u"}}
	p = f.setStatus(t, p, func(s *v1.PodStatus) {
		s.Phase, s.QOSClass, s.ObservedGeneration, s.Conditions[0].ObservedGeneration = v1.PodRunning, "", 0, 0
	})
	switch {
	case p.Spec.Containers[0].Image != "example.test/app:1", len(p.OwnerReferences) > 0, p.Generation != 1:
		t.Errorf("a status write changed more than status: %+v", p)
	case p.Status.Phase != v1.PodRunning, p.Status.QOSClass != v1.PodQOSBestEffort:
		t.Errorf("status is %+v", p.Status)
	case p.Status.ObservedGeneration != 1, p.Status.Conditions[0].ObservedGeneration != 1:
		t.Errorf("cleared observedGeneration stayed cleared: %+v", p.Status)
	}
}

func testBinding(t *testing.T, f *fixture) {
	bind := func(name string, change ...func(*v1.Binding)) error {
		b := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Target: v1.ObjectReference{Kind: "Node",
			Name: "anywhere"}}
		for _, c := range change {
			c(b)
		}
		return f.CoreV1().Pods(ns).Bind(bg(), b, metav1.CreateOptions{})
	}
	p := f.create(t, newPod("to-bind", func(p *v1.Pod) { p.Labels = map[string]string{"zone": "old", "keep": "1"} }))
	if err := bind("to-bind", func(b *v1.Binding) { b.UID = "other" }); !apierrors.IsConflict(err) {
		t.Errorf("binding another incarnation gave %v, want Conflict", err)
	}
	if err := bind("to-bind", func(b *v1.Binding) { b.Target.Name = "" }); !apierrors.IsInvalid(err) {
		t.Errorf("binding to no node gave %v, want Invalid", err)
	}
	if err := bind("to-bind", func(b *v1.Binding) { b.Target.Kind = "Pod" }); !apierrors.IsInvalid(err) {
		t.Errorf("binding to a pod gave %v, want Invalid", err)
	}
	err := bind("to-bind", func(b *v1.Binding) {
		b.UID = p.UID
		b.Annotations, b.Labels = map[string]string{"n": "1"}, map[string]string{"zone": "new"}
	})
	if err != nil {
		t.Fatal(err)
	}
	p = f.get(t, "to-bind")
	c := condition(p, v1.PodScheduled)
	if p.Spec.NodeName != "anywhere" || p.Generation != 1 || c == nil || c.Status != v1.ConditionTrue ||
		p.Annotations["n"] != "1" || p.Labels["zone"] != "new" || p.Labels["keep"] != "1" {
		t.Errorf("bound pod is %+v", p)
	}
	const again = `Operation cannot be fulfilled on pods/binding "to-bind": pod to-bind is already assigned to node "anywhere"`
	if err := bind("to-bind"); !apierrors.IsConflict(err) || err.Error() != again {
		t.Errorf("binding twice gave %v, want %s", err, again)
	}
	f.create(t, newPod("gated-bind", func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.test/wait"}} }))
	if err := bind("gated-bind"); !apierrors.IsConflict(err) {
		t.Errorf("binding a gated pod gave %v, want Conflict", err)
	}
	if err := bind("nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("binding a missing pod gave %v, want NotFound", err)
	}
	f.create(t, newPod("old-way"))
	body := []byte(`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"old-way"},"target":{"kind":"Node","name":"n"}}`)
	var code int
	res := f.CoreV1().RESTClient().Post().Namespace(ns).Resource("bindings").Body(body).Do(bg()).StatusCode(&code)
	if res.Error() != nil || code != http.StatusCreated || f.get(t, "old-way").Spec.NodeName != "n" {
		t.Errorf("POST bindings gave %d, %v", code, res.Error())
	}
}

func testGracefulDelete(t *testing.T, f *fixture) {
	pods := f.CoreV1().Pods(ns)
	p := f.running(t, "leaving", true)
	del := func(o metav1.DeleteOptions) (*v1.Pod, int) {
		t.Helper()
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var code int
		out := &v1.Pod{}
		res := f.CoreV1().RESTClient().Delete().Namespace(ns).Resource("pods").Name("leaving").
			SetHeader("Content-Type", "application/json").Body(body).Do(bg()).StatusCode(&code)
		if err := res.Into(out); err != nil {
			t.Fatal(err)
		}
		return out, code
	}
	before := time.Now()
	first, code := del(metav1.DeleteOptions{})
	if code != 200 || first.DeletionTimestamp == nil || *first.DeletionGracePeriodSeconds != 30 || first.Generation != p.Generation+1 {
		t.Fatalf("first delete gave %d, grace %v, generation %d", code, first.DeletionGracePeriodSeconds, first.Generation)
	}
	if d := first.DeletionTimestamp.Sub(before); d < 28*time.Second || d > 33*time.Second {
		t.Errorf("deletionTimestamp is %s after the request, want 30s", d)
	}
	same, _ := del(metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)})
	if *same.DeletionGracePeriodSeconds != 30 || same.ResourceVersion != first.ResourceVersion {
		t.Errorf("a longer grace changed the pod: %v", same.DeletionGracePeriodSeconds)
	}
	shorter, _ := del(metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](10)})
	if *shorter.DeletionGracePeriodSeconds != 10 || shorter.DeletionTimestamp.Sub(first.DeletionTimestamp.Time) != -20*time.Second ||
		shorter.Generation != first.Generation {
		t.Errorf("shortening gave grace %d, timestamp %s after %s", *shorter.DeletionGracePeriodSeconds, shorter.DeletionTimestamp,
			first.DeletionTimestamp)
	}
	err := pods.Delete(bg(), "leaving", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0),
		Preconditions: metav1.NewUIDPreconditions("wrong")})
	if !apierrors.IsConflict(err) {
		t.Errorf("a wrong UID gave %v, want Conflict", err)
	}
	uid := string(p.UID)
	if err := pods.Delete(bg(), "leaving", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0),
		Preconditions: metav1.NewUIDPreconditions(uid)}); err != nil {
		t.Fatal(err)
	}
	f.gone(t, "leaving")
}

func testImmediateDelete(t *testing.T, f *fixture) {
	pods := f.CoreV1().Pods(ns)
	f.create(t, newPod("homeless"))
	if err := pods.Delete(bg(), "homeless", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.gone(t, "homeless")

	done := f.running(t, "done", false)
	f.setStatus(t, done, func(s *v1.PodStatus) { s.Phase = v1.PodSucceeded })
	if err := pods.Delete(bg(), "done", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](20)}); err != nil {
		t.Fatal(err)
	}
	f.gone(t, "done")

	f.create(t, newPod("held", func(p *v1.Pod) { p.Finalizers = []string{"example.test/hold"} }))
	if err := pods.Delete(bg(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := f.get(t, "held"); p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 0 {
		t.Errorf("held pod has timestamp %v, grace %v", p.DeletionTimestamp, p.DeletionGracePeriodSeconds)
	}
	if _, err := pods.Patch(bg(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.gone(t, "held")
}

func testResize(t *testing.T, f *fixture) {
	cpu := func(n string) v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse(n)} }
	p := f.running(t, "growing", true, func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests = cpu("1") })
	p.Spec.Containers[0].Resources.Requests = cpu("2")
	p.Spec.Containers[0].Image = "example.test/ignored:1"
	out, err := f.CoreV1().Pods(ns).UpdateResize(bg(), "growing", p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Spec.Containers[0]; got.Resources.Requests.Cpu().String() != "2" || got.Image != "example.test/app:1" ||
		out.Generation != p.Generation+1 {
		t.Errorf("resized container is %+v, generation %d", got, out.Generation)
	}
	out.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"),
		v1.ResourceMemory: resource.MustParse("1Gi")}, Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"),
		v1.ResourceMemory: resource.MustParse("1Gi")}}
	if _, err := f.CoreV1().Pods(ns).UpdateResize(bg(), "growing", out, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a resize that changes the class gave %v, want Invalid", err)
	}
}

func testEphemeral(t *testing.T, f *fixture) {
	p := f.running(t, "debugged", true)
	p.Labels = map[string]string{"ignored": "1"}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "look", Image: "example.test/tools:1", ImagePullPolicy: v1.PullIfNotPresent,
		TerminationMessagePolicy: v1.TerminationMessageReadFile}}}
	out, err := f.CoreV1().Pods(ns).UpdateEphemeralContainers(bg(), "debugged", p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Spec.EphemeralContainers) != 1 || out.Generation != p.Generation+1 || out.Labels["ignored"] != "" {
		t.Errorf("debugged pod is %+v", out)
	}
}
