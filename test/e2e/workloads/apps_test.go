package workloads

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestWorkloads asks of each workload kind, on real containers, what its users
// and the upstream conformance suite expect of it. Every subtest has its own
// namespace; what takes minutes by its nature (cron) runs beside the rest.
func TestWorkloads(t *testing.T) {
	kit.OnlyInAll(t, "134 s, the longest of workloads")
	c := kit.NewCluster(t)
	c.Up()
	crons := startCrons(c)
	for _, group := range [][]kit.Subtest{deploymentTests, setTests, statefulTests, daemonTests, jobTests, budgetTests} {
		for _, tt := range group {
			t.Run(tt.Name, func(t *testing.T) {
				ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(tt.Name))
				tt.Run(kit.NewNamespace(t, c, ns))
			})
		}
	}
	t.Run("CronJob", func(t *testing.T) { crons.check(t) })
}

// statusEndpoint writes and patches /status of an object and expects a reader to
// see both: a condition by update, an annotation and a condition by patch.
func statusEndpoint(a *kit.Namespace, groupPath, resource, name string) {
	a.T.Helper()
	rest := a.API.CoreV1().RESTClient()
	path := fmt.Sprintf("%s/namespaces/%s/%s/%s/status", groupPath, a.Name, resource, name)
	read := func() map[string]any {
		a.T.Helper()
		data, err := rest.Get().AbsPath(path).DoRaw(a.Ctx)
		a.Must(err)
		out := map[string]any{}
		a.Must(json.Unmarshal(data, &out))
		return out
	}
	condition := map[string]any{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "set by a test"}
	a.Until("the status of "+name+" can be updated", func() string {
		object := read()
		status, _ := object["status"].(map[string]any)
		if status == nil {
			status = map[string]any{}
			object["status"] = status
		}
		conditions, _ := status["conditions"].([]any)
		status["conditions"] = append(conditions, condition)
		body, err := json.Marshal(object)
		a.Must(err)
		if err := rest.Put().AbsPath(path).Body(body).SetHeader("Content-Type", "application/json").Do(a.Ctx).Error(); err != nil {
			return err.Error()
		}
		return ""
	})
	if !strings.Contains(fmt.Sprint(read()["status"]), "StatusUpdate") {
		a.T.Errorf("the updated status of %s was not kept: %v", name, read()["status"])
	}
	patch := `{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"conditions":[{"type":"StatusPatched","status":"True"}]}}`
	a.Must(rest.Patch(types.MergePatchType).AbsPath(path).Body([]byte(patch)).Do(a.Ctx).Error())
	got := read()
	if !strings.Contains(fmt.Sprint(got["status"]), "StatusPatched") {
		a.T.Errorf("the patched status of %s was not kept: %v", name, got["status"])
	}
	if resource == "jobs" && !strings.Contains(fmt.Sprint(got["metadata"]), "patchedstatus") {
		a.T.Errorf("the annotation of %s was not kept: %v", name, got["metadata"])
	}
}

// scaleEndpoint reads, updates and patches /scale of an object that has one
// replica, to two and four.
func scaleEndpoint(a *kit.Namespace, object, selector string) {
	a.T.Helper()
	a.Ready(selector, 1)
	path := func(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }
	if got := a.K("get", object, "--subresource=scale", "-o", "jsonpath={.spec.replicas} {.kind}"); got != "1 Scale" {
		a.T.Errorf("the scale of %s is %q", object, got)
	}
	a.K("scale", object, "--replicas=2", "--current-replicas=1")
	a.Ready(selector, 2)
	a.K("patch", object, "--subresource=scale", "--type=merge", "-p", path(4))
	a.Ready(selector, 4)
	a.Until("the scale's status of "+object, func() string {
		if got := a.K("get", object, "--subresource=scale", "-o", "jsonpath={.status.replicas} {.status.selector}"); got != "4 "+selector {
			return got
		}
		return ""
	})
}

// duringChanges runs f and then proves that nothing broke the rule at any change of
// pods from before f to its end.
func duringChanges(a *kit.Namespace, selector string, rule func([]v1.Pod) string, f func()) {
	a.T.Helper()
	list, err := a.API.CoreV1().Pods(a.Name).List(a.Ctx, metav1.ListOptions{LabelSelector: selector})
	a.Must(err)
	w, err := a.API.CoreV1().Pods(a.Name).Watch(a.Ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	a.Must(err)
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
			a.T.Error(s)
		}
	case <-time.After(kit.Timeout):
		a.T.Error("the watch of pods did not end")
	}
}
