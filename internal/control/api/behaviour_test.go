package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestAPI runs the behaviours every resource shares against one server. Each
// part works in a namespace of its own.
func TestAPI(t *testing.T) {
	env := apitest.StartEnv(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"create read update delete": testCRUD,
		"watch":                     testWatch,
		"watch list":                testWatchList,
		"chunked list":              testChunks,
		"selectors":                 testSelectors,
		"patches":                   testPatches,
		"apply":                     testApply,
		"protobuf":                  testProtobuf,
		"table":                     testTable,
		"generation":                testGeneration,
		"status":                    testStatus,
		"delete":                    testDelete,
		"delete collection":         testDeleteCollection,
		"dry run":                   testDryRun,
		"events":                    testEvents,
		"jobs":                      testJobs,
		"create by put":             testCreateByPut,
		"discovery":                 testDiscovery,
		"strict fields":             testStrictFields,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, env)) })
	}
	t.Run("access", func(t *testing.T) { testAccess(t, env) })
	t.Run("health", func(t *testing.T) { testHealth(t, env) })
}

// fixture is a client and a fresh namespace.
type fixture struct {
	kubernetes.Interface
	env    *apitest.Env
	config *rest.Config
	ns     string
}

func newFixture(t *testing.T, env *apitest.Env) *fixture {
	t.Helper()
	c := clients(t, env.Config)
	ns, err := c.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{Interface: c, env: env, config: env.Config, ns: ns.Name}
}

func (f *fixture) configMap(t *testing.T, name string, labels map[string]string) *corev1.ConfigMap {
	t.Helper()
	cm, err := f.CoreV1().ConfigMaps(f.ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"k": "v"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating config map %s: %v", name, err)
	}
	return cm
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image:1"}}},
			},
		},
	}
}

func testCRUD(t *testing.T, f *fixture) {
	maps := f.CoreV1().ConfigMaps(f.ns)
	cm := f.configMap(t, "a", nil)
	if cm.UID == "" || cm.ResourceVersion == "" || cm.CreationTimestamp.IsZero() {
		t.Errorf("system fields are missing: %+v", cm.ObjectMeta)
	}
	if _, err := maps.Create(t.Context(), cm.DeepCopy(), metav1.CreateOptions{}); err == nil {
		t.Error("an object with a resource version was created")
	}
	again := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := maps.Create(t.Context(), again, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	cm.Data["k"] = "w"
	updated, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if updated.ResourceVersion == cm.ResourceVersion {
		t.Error("the update left the resource version alone")
	}
	if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	same, err := maps.Update(t.Context(), updated, metav1.UpdateOptions{})
	if err != nil || same.ResourceVersion != updated.ResourceVersion {
		t.Errorf("an update without a change wrote: %v, %v", same.ResourceVersion, err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a/b"}},
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("bad name: %v", err)
	}
}

// next reads one event or fails; the watch itself has a server-side timeout,
// so a lost event ends the test.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-t.Context().Done():
		t.Fatal("no event")
	}
	return watch.Event{}
}

func testWatch(t *testing.T, f *fixture) {
	maps := f.CoreV1().ConfigMaps(f.ns)
	first := f.configMap(t, "a", nil)
	timeout := ptr.To[int64](60)
	w, err := maps.Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: first.ResourceVersion, AllowWatchBookmarks: true, TimeoutSeconds: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	second := f.configMap(t, "b", nil)
	if e := next(t, w); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "b" {
		t.Errorf("got %v", e)
	}
	if err := maps.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e := next(t, w)
	for e.Type == watch.Bookmark {
		e = next(t, w)
	}
	if e.Type != watch.Deleted || e.Object.(*corev1.ConfigMap).UID != second.UID {
		t.Errorf("got %v", e)
	}
	// A watch resumed at an old version replays what happened since.
	w2, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion, TimeoutSeconds: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer w2.Stop()
	if e := next(t, w2); e.Type != watch.Added {
		t.Errorf("resumed watch begins with %v", e)
	}
	if e := next(t, w2); e.Type != watch.Deleted {
		t.Errorf("resumed watch goes on with %v", e)
	}
	// A version from the future cannot be served.
	w3, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1", TimeoutSeconds: timeout})
	if err == nil {
		defer w3.Stop()
		if e := next(t, w3); e.Type != watch.Added && e.Type != watch.Error {
			t.Errorf("watch from 1 begins with %v", e)
		}
	}
}

// testWatchList is the streaming list: existing objects first, then a bookmark
// that marks the end of the list.
func testWatchList(t *testing.T, f *fixture) {
	for i := range 3 {
		f.configMap(t, fmt.Sprintf("m%d", i), nil)
	}
	w, err := f.CoreV1().ConfigMaps(f.ns).Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	names := map[string]bool{}
	for {
		e := next(t, w)
		cm := e.Object.(*corev1.ConfigMap)
		if e.Type == watch.Bookmark {
			if cm.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("bookmark without mark: %+v", cm)
			}
			break
		}
		names[cm.Name] = true
	}
	if len(names) != 3 {
		t.Errorf("initial events for %v", names)
	}
}

func testChunks(t *testing.T, f *fixture) {
	const total = 25
	for i := range total {
		f.configMap(t, fmt.Sprintf("m%02d", i), nil)
	}
	var names []string
	options := metav1.ListOptions{Limit: 10}
	version := ""
	for page := 0; ; page++ {
		list, err := f.CoreV1().ConfigMaps(f.ns).List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = list.ResourceVersion
			// Written between the pages: must not appear.
			f.configMap(t, "m99", nil)
		}
		if list.ResourceVersion != version {
			t.Errorf("page %d is of version %s, the first of %s", page, list.ResourceVersion, version)
		}
		for _, cm := range list.Items {
			names = append(names, cm.Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if len(names) != total || names[0] != "m00" || names[total-1] != "m24" {
		t.Errorf("pages hold %v", names)
	}
}

func testSelectors(t *testing.T, f *fixture) {
	f.configMap(t, "a", map[string]string{"tier": "x"})
	f.configMap(t, "b", map[string]string{"tier": "y"})
	maps := f.CoreV1().ConfigMaps(f.ns)
	for _, c := range []struct {
		options metav1.ListOptions
		want    string
	}{
		{metav1.ListOptions{LabelSelector: "tier=x"}, "a"},
		{metav1.ListOptions{LabelSelector: "tier!=x"}, "b"},
		{metav1.ListOptions{LabelSelector: "tier in (x,y)"}, "a b"},
		{metav1.ListOptions{LabelSelector: "!tier"}, ""},
		{metav1.ListOptions{FieldSelector: "metadata.name=b"}, "b"},
		{metav1.ListOptions{FieldSelector: "metadata.name!=b,metadata.namespace=" + f.ns}, "a"},
	} {
		list, err := maps.List(t.Context(), c.options)
		if err != nil {
			t.Errorf("%+v: %v", c.options, err)
			continue
		}
		var names []string
		for _, cm := range list.Items {
			names = append(names, cm.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("label %q field %q: got %q, want %q", c.options.LabelSelector, c.options.FieldSelector, got, c.want)
		}
	}
	_, err := maps.List(t.Context(), metav1.ListOptions{FieldSelector: "data.k=v"})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("unsupported field: %v", err)
	}
}

func testPatches(t *testing.T, f *fixture) {
	deployments := f.AppsV1().Deployments(f.ns)
	if _, err := deployments.Create(t.Context(), deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(kind types.PatchType, body string) (*appsv1.Deployment, error) {
		return deployments.Patch(t.Context(), "d", kind, []byte(body), metav1.PatchOptions{})
	}
	d, err := patch(types.JSONPatchType,
		`[{"op":"test","path":"/spec/replicas","value":1},{"op":"replace","path":"/spec/replicas","value":2}]`)
	if err != nil || *d.Spec.Replicas != 2 {
		t.Errorf("JSON patch: %v, %v", d.Spec.Replicas, err)
	}
	if _, err := patch(types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":1}]`); !apierrors.IsInvalid(err) {
		t.Errorf("JSON patch with a failing test: %v", err)
	}
	d, err = patch(types.MergePatchType, `{"metadata":{"labels":{"x":"y"}},"spec":{"replicas":3}}`)
	if err != nil || *d.Spec.Replicas != 3 || d.Labels["x"] != "y" {
		t.Errorf("merge patch: %v, %v", d, err)
	}
	d, err = patch(types.StrategicMergePatchType, `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:1"}]}}}}`)
	if err != nil || len(d.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("strategic merge patch: %v, %v", d, err)
	}
}

func testApply(t *testing.T, f *fixture) {
	deployments := f.AppsV1().Deployments(f.ns)
	apply := func(manager string, replicas int32, force bool) (*appsv1.Deployment, error) {
		labels := map[string]string{"app": "d"}
		return deployments.Apply(t.Context(), appsapply.Deployment("d", f.ns).WithSpec(appsapply.DeploymentSpec().
			WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).WithSpec(coreapply.PodSpec().
				WithContainers(coreapply.Container().WithName("c").WithImage("image:1"))))),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("one", 1, false); err != nil {
		t.Fatal(err)
	}
	_, err := apply("two", 2, false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), ".spec.replicas") {
		t.Errorf("second manager: %v", err)
	}
	d, err := apply("two", 2, true)
	if err != nil || *d.Spec.Replicas != 2 {
		t.Errorf("forced: %v, %v", d, err)
	}
	if len(d.ManagedFields) != 2 {
		t.Errorf("managers: %v", d.ManagedFields)
	}
	// What an applier no longer mentions goes away.
	partial, err := deployments.Apply(t.Context(), appsapply.Deployment("d", f.ns).WithAnnotations(map[string]string{"a": "b"}),
		metav1.ApplyOptions{FieldManager: "three"})
	if err != nil || partial.Annotations["a"] != "b" {
		t.Fatalf("partial apply: %v, %v", partial, err)
	}
	gone, err := deployments.Apply(t.Context(), appsapply.Deployment("d", f.ns), metav1.ApplyOptions{FieldManager: "three"})
	if err != nil || len(gone.Annotations) != 0 {
		t.Errorf("after dropping the annotation: %v, %v", gone.Annotations, err)
	}
}

func testProtobuf(t *testing.T, f *fixture) {
	config := rest.CopyConfig(f.config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	c := clients(t, config)
	if _, err := c.AppsV1().Deployments(f.ns).Create(t.Context(), deployment("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := c.AppsV1().Deployments(f.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Spec.Template.Spec.Containers[0].Image != "image:1" {
		t.Errorf("protobuf list: %v, %v", list, err)
	}
}

func (f *fixture) raw(t *testing.T, verb, path, accept string, body []byte) (int, []byte) {
	t.Helper()
	client, err := rest.HTTPClientFor(f.config)
	if err != nil {
		t.Fatal(err)
	}
	return request(t, client, verb, f.config.Host+path, accept, body)
}

func request(t *testing.T, client *http.Client, verb, url, accept string, body []byte) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), verb, url, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			break
		}
	}
	return resp.StatusCode, []byte(out.String())
}

func testTable(t *testing.T, f *fixture) {
	f.configMap(t, "a", nil)
	code, body := f.raw(t, "GET", "/api/v1/namespaces/"+f.ns+"/configmaps", "application/json;as=Table;v=v1;g=meta.k8s.io", nil)
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	if table.Kind != "Table" || len(table.Rows) != 1 || table.ColumnDefinitions[0].Name != "Name" || table.Rows[0].Cells[0] != "a" {
		t.Errorf("table %s", body)
	}
}

func testDryRun(t *testing.T, f *fixture) {
	maps := f.CoreV1().ConfigMaps(f.ns)
	all := []string{metav1.DryRunAll}
	cm, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{DryRun: all})
	if err != nil || cm.UID == "" {
		t.Errorf("dry create: %v, %v", cm, err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("dry create wrote: %v", err)
	}
	f.configMap(t, "a", nil)
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{DryRun: all}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("dry delete deleted: %v", err)
	}
}

func testStrictFields(t *testing.T, f *fixture) {
	body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s"},"dat":{}}`)
	code, out := f.raw(t, "POST", "/api/v1/namespaces/"+f.ns+"/configmaps?fieldValidation=Strict", "application/json", body)
	if code != http.StatusBadRequest || !strings.Contains(string(out), `unknown field \"dat\"`) {
		t.Errorf("strict: %d %s", code, out)
	}
	if code, out := f.raw(t, "POST", "/api/v1/namespaces/"+f.ns+"/configmaps", "application/json", body); code != http.StatusCreated {
		t.Errorf("default: %d %s", code, out)
	}
}
