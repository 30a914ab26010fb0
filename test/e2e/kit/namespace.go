package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Subtest is one of many tests on the same cluster, each in a namespace of its own.
type Subtest struct {
	Name string
	Run  func(a *Namespace)
}

// Namespace is one namespace of the cluster with what the subtests do there.
type Namespace struct {
	*Cluster
	Name string
	Ctx  context.Context
	API  kubernetes.Interface
}

// NewNamespace makes the namespace; it is deleted when the subtest ends.
func NewNamespace(t *testing.T, c *Cluster, ns string) *Namespace {
	t.Helper()
	a := &Namespace{Cluster: c.In(t), Name: ns, Ctx: context.Background(), API: c.Client}
	_, err := a.API.CoreV1().Namespaces().Create(a.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	a.Must(err)
	t.Cleanup(func() {
		now := int64(0)
		// Nothing waits for the namespace: the next subtest has another.
		_ = a.API.CoreV1().Pods(ns).DeleteCollection(a.Ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		_ = a.API.CoreV1().Namespaces().Delete(a.Ctx, ns, metav1.DeleteOptions{})
	})
	return a
}

// Must fails the subtest on an error.
func (a *Namespace) Must(err error) {
	a.T.Helper()
	if err != nil {
		a.T.Fatal(err)
	}
}

// Make applies objects in the namespace.
func (a *Namespace) Make(manifest string) {
	a.T.Helper()
	if out, err := a.TryKubectl(manifest, "apply", "-n", a.Name, "-f", "-"); err != nil {
		a.T.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// K runs kubectl in the namespace; it must succeed.
func (a *Namespace) K(args ...string) string {
	a.T.Helper()
	return a.Kubectl(append([]string{"-n", a.Name}, args...)...)
}

// Until waits until get returns nothing more to complain of.
func (a *Namespace) Until(what string, wrong func() string) {
	a.T.Helper()
	a.Eventually(what, func() (bool, string) {
		w := wrong()
		return w == "", w
	})
}

// Field prints one field of an object.
func (a *Namespace) Field(object, path string) string {
	a.T.Helper()
	return a.K("get", object, "-o", "jsonpath="+path)
}

// UntilField waits until a field of an object has a value.
func (a *Namespace) UntilField(object, path, want string) {
	a.T.Helper()
	a.Until(object+" "+path+" is "+want, func() string {
		got, err := a.TryKubectl("", "-n", a.Name, "get", object, "-o", "jsonpath="+path)
		switch {
		case err != nil:
			return got
		case got != want:
			return fmt.Sprintf("it is %q", got)
		}
		return ""
	})
}

// Live lists pods that nobody deletes.
func (a *Namespace) Live(selector string) []v1.Pod {
	a.T.Helper()
	var out []v1.Pod
	for _, p := range a.Pods(a.Name, selector) {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// Ready waits for exactly n live pods, all ready.
func (a *Namespace) Ready(selector string, n int) []v1.Pod {
	a.T.Helper()
	var got []v1.Pod
	a.Until(fmt.Sprintf("%d ready pods %s", n, selector), func() string {
		got = a.Live(selector)
		var words []string
		ready := 0
		for i := range got {
			words = append(words, Describe(&got[i]))
			if PodReady(&got[i]) {
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

// Lifecycle creates, reads, patches, lists, updates and deletes an object, then
// makes two more that go together by label, while a watch sees all of it.
func (a *Namespace) Lifecycle(path, manifest string) {
	a.T.Helper()
	rest := a.API.CoreV1().RESTClient()
	const mark = "e2e-life"
	call := func(verb, sub, kind, body string) *unstructured.Unstructured {
		a.T.Helper()
		r := rest.Verb(verb).AbsPath(path+sub).SetHeader("Accept", "application/json")
		if body != "" {
			r = r.Body([]byte(body)).SetHeader("Content-Type", kind)
		}
		data, err := r.DoRaw(a.Ctx)
		if err != nil {
			a.T.Fatalf("%s %s%s: %v: %s", verb, path, sub, err, data)
		}
		out := &unstructured.Unstructured{}
		a.Must(json.Unmarshal(data, &out.Object))
		return out
	}
	list := func(selector string) int {
		a.T.Helper()
		data, err := rest.Get().AbsPath(path).Param("labelSelector", selector).DoRaw(a.Ctx)
		a.Must(err)
		out := &unstructured.UnstructuredList{}
		a.Must(out.UnmarshalJSON(data))
		return len(out.Items)
	}
	create := func(name, label string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		a.Must(json.Unmarshal([]byte(manifest), &o.Object))
		group := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
		o.SetAPIVersion("v1")
		if strings.HasPrefix(path, "/apis/") {
			o.SetAPIVersion(group[0] + "/" + group[1])
		}
		o.SetName(name)
		o.SetLabels(map[string]string{mark: label})
		body, err := o.MarshalJSON()
		a.Must(err)
		return call("POST", "", "application/json", string(body))
	}
	gone := func(selector string) {
		a.T.Helper()
		a.Until(path+" "+selector+" is gone", func() string {
			if n := list(selector); n > 0 {
				return fmt.Sprint(n, " left")
			}
			return ""
		})
	}
	made := create("one", "made")
	if got := call("GET", "/one", "", ""); got.GetUID() != made.GetUID() {
		a.T.Errorf("%s: read %s, made %s", path, got.GetUID(), made.GetUID())
	}
	for _, kind := range []types.PatchType{types.StrategicMergePatchType, types.MergePatchType} {
		if got := call("PATCH", "/one", string(kind), `{"metadata":{"labels":{"`+mark+
			`":"patched"}}}`); got.GetLabels()[mark] != "patched" {
			a.T.Errorf("%s: patched to %v", path, got.GetLabels())
		}
	}
	if n := list(mark + "=patched"); n != 1 {
		a.T.Errorf("%s: %d patched ones", path, n)
	}
	a.Until(path+"/one is updated", func() string { // a controller may have written in between
		now := call("GET", "/one", "", "")
		now.SetLabels(map[string]string{mark: "updated"})
		body, err := now.MarshalJSON()
		a.Must(err)
		err = rest.Put().AbsPath(path+"/one").SetHeader("Content-Type", "application/json").Body(body).Do(a.Ctx).Error()
		if err != nil && !apierrors.IsConflict(err) {
			a.T.Fatalf("PUT %s/one: %v", path, err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if n := list(mark + "=updated"); n != 1 {
		a.T.Errorf("%s: %d updated ones", path, n)
	}
	call("DELETE", "/one", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`)
	gone(mark + "=updated")
	if err := rest.Get().AbsPath(path + "/one").Do(a.Ctx).Error(); !apierrors.IsNotFound(err) {
		a.T.Errorf("%s: after the deletion: %v", path, err)
	}
	create("two", "together")
	create("three", "together")
	create("four", "apart")
	if n := list(mark + " in (together,apart)"); n != 3 {
		a.T.Errorf("%s: %d objects, want 3", path, n)
	}
	a.Must(rest.Delete().AbsPath(path).Param("labelSelector", mark+"=together").Param("gracePeriodSeconds", "0").Do(a.Ctx).Error())
	gone(mark + "=together")
	if n := list(mark + "=apart"); n != 1 {
		a.T.Errorf("%s: the other one went too", path)
	}
	call("DELETE", "/four", "", "")
	gone(mark)
}
