package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// TestWorkloads asks of each workload kind, on real containers, what its users
// and the upstream conformance suite expect of it. Every subtest has its own
// namespace; what takes minutes by its nature (cron) runs beside the rest.
func TestWorkloads(t *testing.T) {
	c := newCluster(t)
	c.up()
	crons := startCrons(c)
	for _, group := range [][]appTest{deploymentTests, setTests, statefulTests, daemonTests, jobTests, budgetTests} {
		for _, tt := range group {
			t.Run(tt.name, func(t *testing.T) {
				ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(tt.name))
				tt.run(newApps(t, c, ns))
			})
		}
	}
	t.Run("CronJob", func(t *testing.T) { crons.check(t) })
}

type appTest struct {
	name string
	run  func(a *apps)
}

// apps is one namespace of the cluster with what the subtests do there.
type apps struct {
	*cluster
	ns  string
	ctx context.Context
	api kubernetes.Interface
}

func newApps(t *testing.T, c *cluster, ns string) *apps {
	t.Helper()
	a := &apps{cluster: c.in(t), ns: ns, ctx: context.Background(), api: c.client}
	_, err := a.api.CoreV1().Namespaces().Create(a.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	a.must(err)
	t.Cleanup(func() {
		now := int64(0)
		// Nothing waits for the namespace: the next subtest has another.
		_ = a.api.CoreV1().Pods(ns).DeleteCollection(a.ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		_ = a.api.CoreV1().Namespaces().Delete(a.ctx, ns, metav1.DeleteOptions{})
	})
	return a
}

func (a *apps) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// make applies objects in the namespace.
func (a *apps) make(manifest string) {
	a.t.Helper()
	if out, err := a.tryKubectl(manifest, "apply", "-n", a.ns, "-f", "-"); err != nil {
		a.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

func (a *apps) k(args ...string) string {
	a.t.Helper()
	return a.kubectl(append([]string{"-n", a.ns}, args...)...)
}

// until waits until get returns nothing more to complain of.
func (a *apps) until(what string, wrong func() string) {
	a.t.Helper()
	a.eventually(what, func() (bool, string) {
		w := wrong()
		return w == "", w
	})
}

// field prints one field of an object.
func (a *apps) field(object, path string) string {
	a.t.Helper()
	return a.k("get", object, "-o", "jsonpath="+path)
}

func (a *apps) untilField(object, path, want string) {
	a.t.Helper()
	a.until(object+" "+path+" is "+want, func() string {
		got, err := a.tryKubectl("", "-n", a.ns, "get", object, "-o", "jsonpath="+path)
		switch {
		case err != nil:
			return got
		case got != want:
			return fmt.Sprintf("it is %q", got)
		}
		return ""
	})
}

// live lists pods that nobody deletes.
func (a *apps) live(selector string) []v1.Pod {
	a.t.Helper()
	var out []v1.Pod
	for _, p := range a.pods(a.ns, selector) {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// ready waits for exactly n live pods, all ready.
func (a *apps) ready(selector string, n int) []v1.Pod {
	a.t.Helper()
	var got []v1.Pod
	a.until(fmt.Sprintf("%d ready pods %s", n, selector), func() string {
		got = a.live(selector)
		var words []string
		ready := 0
		for i := range got {
			words = append(words, describe(&got[i]))
			if podReady(&got[i]) {
				ready++
			}
		}
		if len(got) == n && ready == n {
			return ""
		}
		return "there are: " + strings.Join(words, "; ")
	})
	return got
}

// statusEndpoint writes and patches /status of an object and expects a reader to
// see both: a condition by update, an annotation and a condition by patch.
func (a *apps) statusEndpoint(groupPath, resource, name string) {
	a.t.Helper()
	rest := a.api.CoreV1().RESTClient()
	path := fmt.Sprintf("%s/namespaces/%s/%s/%s/status", groupPath, a.ns, resource, name)
	read := func() map[string]any {
		a.t.Helper()
		data, err := rest.Get().AbsPath(path).DoRaw(a.ctx)
		a.must(err)
		out := map[string]any{}
		a.must(json.Unmarshal(data, &out))
		return out
	}
	condition := map[string]any{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "set by a test"}
	a.until("the status of "+name+" can be updated", func() string {
		object := read()
		status, _ := object["status"].(map[string]any)
		if status == nil {
			status = map[string]any{}
			object["status"] = status
		}
		conditions, _ := status["conditions"].([]any)
		status["conditions"] = append(conditions, condition)
		body, err := json.Marshal(object)
		a.must(err)
		if err := rest.Put().AbsPath(path).Body(body).SetHeader("Content-Type", "application/json").Do(a.ctx).Error(); err != nil {
			return err.Error()
		}
		return ""
	})
	if !strings.Contains(fmt.Sprint(read()["status"]), "StatusUpdate") {
		a.t.Errorf("the updated status of %s was not kept: %v", name, read()["status"])
	}
	patch := `{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"conditions":[{"type":"StatusPatched","status":"True"}]}}`
	a.must(rest.Patch(types.MergePatchType).AbsPath(path).Body([]byte(patch)).Do(a.ctx).Error())
	got := read()
	if !strings.Contains(fmt.Sprint(got["status"]), "StatusPatched") {
		a.t.Errorf("the patched status of %s was not kept: %v", name, got["status"])
	}
	if resource == "jobs" && !strings.Contains(fmt.Sprint(got["metadata"]), "patchedstatus") {
		a.t.Errorf("the annotation of %s was not kept: %v", name, got["metadata"])
	}
}

// scaleEndpoint reads, updates and patches /scale of an object that has one
// replica, to two and four.
func (a *apps) scaleEndpoint(object, selector string) {
	a.t.Helper()
	a.ready(selector, 1)
	path := func(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }
	if got := a.k("get", object, "--subresource=scale", "-o", "jsonpath={.spec.replicas} {.kind}"); got != "1 Scale" {
		a.t.Errorf("the scale of %s is %q", object, got)
	}
	a.k("scale", object, "--replicas=2", "--current-replicas=1")
	a.ready(selector, 2)
	a.k("patch", object, "--subresource=scale", "--type=merge", "-p", path(4))
	a.ready(selector, 4)
	a.until("the scale's status of "+object, func() string {
		if got := a.k("get", object, "--subresource=scale", "-o", "jsonpath={.status.replicas} {.status.selector}"); got != "4 "+selector {
			return got
		}
		return ""
	})
}

// during runs f and then proves that nothing broke the rule at any change of
// pods from before f to its end.
func (a *apps) during(selector string, rule func([]v1.Pod) string, f func()) {
	a.t.Helper()
	list, err := a.api.CoreV1().Pods(a.ns).List(a.ctx, metav1.ListOptions{LabelSelector: selector})
	a.must(err)
	w, err := a.api.CoreV1().Pods(a.ns).Watch(a.ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	a.must(err)
	now := map[string]v1.Pod{}
	for _, p := range list.Items {
		now[p.Name] = p
	}
	broken := make(chan string, 1)
	var over atomic.Bool
	go func() {
		defer close(broken)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*v1.Pod)
			if !ok && over.Load() {
				return
			}
			if !ok {
				broken <- fmt.Sprintf("the watch said %v", e.Object)
				return
			}
			now[p.Name] = *p
			if e.Type == "DELETED" {
				delete(now, p.Name)
			}
			var all []v1.Pod
			for _, p := range now {
				all = append(all, p)
			}
			if s := rule(all); s != "" {
				broken <- s
				return
			}
		}
	}()
	f()
	over.Store(true)
	w.Stop()
	select {
	case s := <-broken:
		if s != "" {
			a.t.Error(s)
		}
	case <-time.After(patience):
		a.t.Error("the watch of pods did not end")
	}
}
