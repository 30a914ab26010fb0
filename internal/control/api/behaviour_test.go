package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
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

	"github.com/berth-dev/berth/internal/control/api"
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
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a/b"}}, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
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
	d, err := patch(types.JSONPatchType, `[{"op":"test","path":"/spec/replicas","value":1},{"op":"replace","path":"/spec/replicas","value":2}]`)
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

func testGeneration(t *testing.T, f *fixture) {
	deployments := f.AppsV1().Deployments(f.ns)
	d, err := deployments.Create(t.Context(), deployment("d"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	step := func(what string, want int64, change func(*appsv1.Deployment)) {
		t.Helper()
		change(d)
		var err error
		if d, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if d.Generation != want {
			t.Errorf("after %s: generation %d, want %d", what, d.Generation, want)
		}
	}
	if d.Generation != 1 {
		t.Errorf("new deployment: generation %d", d.Generation)
	}
	step("label change", 1, func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} })
	step("spec change", 2, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](5) })
	step("annotation change", 3, func(d *appsv1.Deployment) { d.Annotations = map[string]string{"a": "b"} })
	step("attempt to set it", 3, func(d *appsv1.Deployment) { d.Generation = 77 })

	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: appsv1.ReplicaSetSpec{
		Selector: d.Spec.Selector, Template: d.Spec.Template}}
	if rs, err = f.AppsV1().ReplicaSets(f.ns).Create(t.Context(), rs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rs.Annotations = map[string]string{"a": "b"}
	if rs, err = f.AppsV1().ReplicaSets(f.ns).Update(t.Context(), rs, metav1.UpdateOptions{}); err != nil || rs.Generation != 1 {
		t.Errorf("replica set after annotation change: generation %d, %v", rs.Generation, err)
	}
	cm := f.configMap(t, "c", nil)
	if cm.Generation != 0 {
		t.Errorf("config map: generation %d", cm.Generation)
	}
}

func testStatus(t *testing.T, f *fixture) {
	deployments := f.AppsV1().Deployments(f.ns)
	d := deployment("d")
	d.Status.Replicas = 9
	d, err := deployments.Create(t.Context(), d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Status.Replicas != 0 {
		t.Error("create kept the status")
	}
	d.Status.ObservedGeneration, d.Spec.Replicas = 1, ptr.To[int32](7)
	d.Labels = map[string]string{"x": "y"}
	if d, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.ObservedGeneration != 1 || *d.Spec.Replicas != 1 || len(d.Labels) != 0 || d.Generation != 1 {
		t.Errorf("after status update: status %+v, replicas %d, labels %v, generation %d", d.Status, *d.Spec.Replicas, d.Labels, d.Generation)
	}
	d.Status.ObservedGeneration, d.Spec.Replicas = 5, ptr.To[int32](2)
	if d, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.ObservedGeneration != 1 || *d.Spec.Replicas != 2 {
		t.Errorf("after update: status %+v, replicas %d", d.Status, *d.Spec.Replicas)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OSImage: "os"}}}
	if node, err = f.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil || node.Status.NodeInfo.OSImage != "os" {
		t.Errorf("node status on create: %+v, %v", node.Status, err)
	}
	missing := deployment("missing")
	missing.Namespace = f.ns
	if _, err := deployments.UpdateStatus(t.Context(), missing, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("status of a missing object: %v", err)
	}
}

func testDelete(t *testing.T, f *fixture) {
	cm := f.configMap(t, "a", nil)
	wrong := types.UID("wrong")
	maps := f.CoreV1().ConfigMaps(f.ns)
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("wrong UID: %v", err)
	}
	code, body := f.raw(t, "DELETE", "/api/v1/namespaces/"+f.ns+"/configmaps/a", "application/json", nil)
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err != nil || code != 200 || status.Status != metav1.StatusSuccess ||
		status.Details == nil || status.Details.UID != cm.UID || status.Details.Kind != "configmaps" {
		t.Errorf("deleting a config map: %d %s", code, body)
	}

	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}
	pvc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}
	if _, err := f.CoreV1().PersistentVolumeClaims(f.ns).Create(t.Context(), pvc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	code, body = f.raw(t, "DELETE", "/api/v1/namespaces/"+f.ns+"/persistentvolumeclaims/p", "application/json", nil)
	if code != 200 || !strings.Contains(string(body), `"kind":"PersistentVolumeClaim"`) {
		t.Errorf("deleting a claim: %d %s", code, body)
	}

	// Finalizers keep the object, marked, until the last one is gone.
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	if _, err := maps.Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	code, body = f.raw(t, "DELETE", "/api/v1/namespaces/"+f.ns+"/configmaps/held", "application/json", nil)
	if code != 200 || !strings.Contains(string(body), `"deletionTimestamp"`) {
		t.Errorf("deleting a held object: %d %s", code, body)
	}
	marked, err := maps.Get(t.Context(), "held", metav1.GetOptions{})
	if err != nil || marked.DeletionTimestamp == nil {
		t.Fatalf("held object: %v, %v", marked, err)
	}
	marked.Finalizers = nil
	if _, err := maps.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v", err)
	}

	// Foreground deletion waits for the garbage collector through a finalizer.
	if _, err := f.AppsV1().Deployments(f.ns).Create(t.Context(), deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := f.AppsV1().Deployments(f.ns).Delete(t.Context(), "d", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	d, err := f.AppsV1().Deployments(f.ns).Get(t.Context(), "d", metav1.GetOptions{})
	if err != nil || d.DeletionTimestamp == nil || len(d.Finalizers) != 1 || d.Finalizers[0] != metav1.FinalizerDeleteDependents {
		t.Errorf("foreground: %+v, %v", d.ObjectMeta, err)
	}
}

func testDeleteCollection(t *testing.T, f *fixture) {
	for i := range 5 {
		f.configMap(t, fmt.Sprintf("m%d", i), map[string]string{"odd": fmt.Sprint(i % 2)})
	}
	maps := f.CoreV1().ConfigMaps(f.ns)
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "odd=1"}); err != nil {
		t.Fatal(err)
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Errorf("left: %v, %v", list.Items, err)
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

// testEvents: one event, two APIs.
func testEvents(t *testing.T, f *fixture) {
	_, err := f.CoreV1().Events(f.ns).Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: f.ns},
		Reason:         "Because", Message: "words", Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: "test"}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.EventsV1().Events(f.ns).Get(t.Context(), "e", metav1.GetOptions{})
	if err != nil || e.Note != "words" || e.Regarding.Name != "p" || e.DeprecatedCount != 1 {
		t.Errorf("through events.k8s.io: %+v, %v", e, err)
	}
	_, err = f.EventsV1().Events(f.ns).Create(t.Context(), &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: metav1.NowMicro(), Regarding: corev1.ObjectReference{Kind: "Pod", Name: "q", Namespace: f.ns},
		ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Doing", Reason: "Because", Note: "words", Type: corev1.EventTypeNormal,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.CoreV1().Events(f.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("through core: %v, %v", list, err)
	}
	for _, e := range list.Items {
		if e.Message != "words" {
			t.Errorf("core event %+v", e)
		}
	}
	w, err := f.EventsV1().Events(f.ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := f.CoreV1().Events(f.ns).Delete(t.Context(), "e", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := next(t, w); got.Type != watch.Deleted || got.Object.(*eventsv1.Event).Note != "words" {
		t.Errorf("watch of events.k8s.io: %v", got)
	}
	// Every write gives the event another hour, by an etcd lease.
	kv, err := f.env.Store.Client().Get(t.Context(), "/registry/events/"+f.ns+"/new")
	if err != nil || len(kv.Kvs) != 1 || kv.Kvs[0].Lease == 0 {
		t.Errorf("stored event: %v, %v", kv, err)
	}
}

func testJobs(t *testing.T, f *fixture) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	job, err := f.BatchV1().Jobs(f.ns).Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uid := string(job.UID)
	if got := job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; got != uid {
		t.Errorf("selector %v", job.Spec.Selector)
	}
	for key, want := range map[string]string{"controller-uid": uid, "job-name": "j", batchv1.ControllerUidLabel: uid, batchv1.JobNameLabel: "j"} {
		if got := job.Spec.Template.Labels[key]; got != want {
			t.Errorf("template label %s is %q, want %q", key, got, want)
		}
	}
	// Without a policy a job leaves its pods behind.
	if err := f.BatchV1().Jobs(f.ns).Delete(t.Context(), "j", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	job, err = f.BatchV1().Jobs(f.ns).Get(t.Context(), "j", metav1.GetOptions{})
	if err != nil || len(job.Finalizers) != 1 || job.Finalizers[0] != metav1.FinalizerOrphanDependents {
		t.Errorf("deleted job: %v, %v", job.Finalizers, err)
	}
}

func testCreateByPut(t *testing.T, f *fixture) {
	put := func(path, body string) int {
		code, _ := f.raw(t, "PUT", path, "application/json", []byte(body))
		return code
	}
	endpoints := `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"e","namespace":"` + f.ns + `"}}`
	if code := put("/api/v1/namespaces/"+f.ns+"/endpoints/e", endpoints); code != http.StatusCreated {
		t.Errorf("PUT of missing endpoints: %d", code)
	}
	configMap := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"` + f.ns + `"}}`
	if code := put("/api/v1/namespaces/"+f.ns+"/configmaps/c", configMap); code != http.StatusNotFound {
		t.Errorf("PUT of a missing config map: %d", code)
	}
}

func testDiscovery(t *testing.T, f *fixture) {
	_, lists, err := f.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{}
	var all []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			for _, s := range r.ShortNames {
				short[s] = r.Name
			}
			for _, c := range r.Categories {
				if c == "all" {
					all = append(all, r.Name)
				}
			}
		}
	}
	for s, name := range map[string]string{
		"no": "nodes", "po": "pods", "svc": "services", "ep": "endpoints", "ns": "namespaces", "pv": "persistentvolumes",
		"pvc": "persistentvolumeclaims", "cm": "configmaps", "sa": "serviceaccounts", "ev": "events",
		"rc": "replicationcontrollers", "quota": "resourcequotas", "limits": "limitranges", "ds": "daemonsets",
		"deploy": "deployments", "rs": "replicasets", "sts": "statefulsets", "cj": "cronjobs",
		"hpa": "horizontalpodautoscalers", "csr": "certificatesigningrequests", "pdb": "poddisruptionbudgets",
		"ing": "ingresses", "netpol": "networkpolicies", "ip": "ipaddresses", "pc": "priorityclasses",
		"sc": "storageclasses", "vac": "volumeattributesclasses",
	} {
		if short[s] != name {
			t.Errorf("short name %s is %q, want %q", s, short[s], name)
		}
	}
	if len(all) != 10 {
		t.Errorf("category all: %v", all)
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

func testAccess(t *testing.T, env *apitest.Env) {
	anonymous := rest.AnonymousClientConfig(env.Config)
	client, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/healthz": 200, "/livez": 200, "/readyz": 200, "/version": 200,
		"/readyz/etcd": 200,
		"/api":         401, "/apis": 401, "/metrics": 401, "/api/v1/nodes": 401, "/openapi/v2": 401,
	} {
		if code, body := request(t, client, "GET", env.Config.Host+path, "application/json", nil); code != want {
			t.Errorf("anonymous %s: %d %s, want %d", path, code, body, want)
		}
	}
	stranger := clients(t, env.As(t, "stranger"))
	if _, err := stranger.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights lists nodes: %v", err)
	}
}

func testHealth(t *testing.T, env *apitest.Env) {
	f := &fixture{config: env.Config}
	code, body := f.raw(t, "GET", "/readyz?verbose", "*/*", nil)
	if code != 200 || !strings.Contains(string(body), "[+]etcd ok") || !strings.Contains(string(body), "[+]poststarthook/bootstrap ok") {
		t.Errorf("readyz: %d %s", code, body)
	}
	code, body = f.raw(t, "GET", "/metrics", "*/*", nil)
	if code != 200 || !strings.Contains(string(body), "apiserver_request_total") {
		t.Errorf("metrics: %d, %d bytes", code, len(body))
	}
}

// TestRestartKeepsData stops the server and starts another one on its data.
func TestRestartKeepsData(t *testing.T) {
	dir := t.TempDir()
	first := apitest.StartEnv(t, apitest.WithDir(dir))
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"k": "v"}}
	made, err := clients(t, first.Config).CoreV1().ConfigMaps("default").Create(context.Background(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first.Stop()
	second := apitest.StartEnv(t, apitest.WithDir(dir))
	kept, err := clients(t, second.Config).CoreV1().ConfigMaps("default").Get(context.Background(), "kept", metav1.GetOptions{})
	if err != nil || kept.UID != made.UID || kept.ResourceVersion != made.ResourceVersion {
		t.Errorf("after the restart: %+v, %v", kept, err)
	}
}

// TestStopEndsWatches: an open watch does not hold up the server's end, and
// the client sees it closed.
func TestStopEndsWatches(t *testing.T) {
	env := apitest.StartEnv(t)
	w, err := clients(t, env.Config).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began := time.Now()
	env.Stop()
	t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
	for range w.ResultChan() {
	}
}

// TestInitialObjects: what every cluster starts with is there, and comes back.
func TestInitialObjects(t *testing.T) {
	env := apitest.StartEnv(t)
	c := clients(t, env.Config)
	svc, err := c.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP != "10.0.0.1" || svc.Spec.Ports[0].Port != 443 || svc.Labels["component"] != "apiserver" {
		t.Errorf("service: %+v, %v", svc, err)
	}
	port := int32(env.Server.Address().(*net.TCPAddr).Port)
	slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != apitest.AdvertisedAddress || *slice.Ports[0].Port != port {
		t.Errorf("slice: %+v, %v", slice, err)
	}
	class, err := c.SchedulingV1().PriorityClasses().Get(t.Context(), "system-node-critical", metav1.GetOptions{})
	if err != nil || class.Value != 2000001000 {
		t.Errorf("priority class: %+v, %v", class, err)
	}
	if _, err := c.RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	cidr, err := c.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || cidr.Spec.CIDRs[0] != "10.0.0.0/24" || len(cidr.Status.Conditions) != 1 {
		t.Errorf("service range: %+v, %v", cidr, err)
	}
	w, err := c.DiscoveryV1().EndpointSlices("default").Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: slice.ResourceVersion, TimeoutSeconds: ptr.To[int64](60)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := next(t, w); e.Type != watch.Added; e = next(t, w) {
	}
}

// TestPriorityAndFairness: the queues exist and requests say which they took.
func TestPriorityAndFairness(t *testing.T) {
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) { c.PriorityAndFairness = true }))
	c := clients(t, env.Config)
	schema, err := c.FlowcontrolV1().FlowSchemas().Get(t.Context(), "service-accounts", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(env.As(t, "someone"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(env.Config.Host + "/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"); got == "" || got == string(schema.UID) {
		t.Errorf("a user's request took flow schema %q", got)
	}
}
