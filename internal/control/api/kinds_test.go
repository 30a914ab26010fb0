package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func testDelete(t *testing.T, f *fixture) {
	cm := f.configMap(t, "a", nil)
	wrong := types.UID("wrong")
	maps := f.CoreV1().ConfigMaps(f.ns)
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(
		err) {
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
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: metav1.NowMicro(), Regarding: corev1.ObjectReference{Kind: "Pod", Name: "q",
			Namespace: f.ns},
		ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Doing", Reason: "Because", Note: "words",
		Type: corev1.EventTypeNormal,
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
	w, err := f.EventsV1().Events(f.ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion,
		TimeoutSeconds: ptr.To[int64](60)})
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
	for key, want := range map[string]string{"controller-uid": uid, "job-name": "j", batchv1.ControllerUidLabel: uid,
		batchv1.JobNameLabel: "j"} {
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
	if len(all) != 11 { // horizontalpodautoscalers are in two versions
		t.Errorf("category all: %v", all)
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
		t.Errorf("after status update: status %+v, replicas %d, labels %v, generation %d", d.Status, *d.Spec.Replicas, d.Labels,
			d.Generation)
	}
	d.Status.ObservedGeneration, d.Spec.Replicas = 5, ptr.To[int32](2)
	if d, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d.Status.ObservedGeneration != 1 || *d.Spec.Replicas != 2 {
		t.Errorf("after update: status %+v, replicas %d", d.Status, *d.Spec.Replicas)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.ns},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OSImage: "os"}}}
	if node, err = f.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil ||
		node.Status.NodeInfo.OSImage != "os" {
		t.Errorf("node status on create: %+v, %v", node.Status, err)
	}
	missing := deployment("missing")
	missing.Namespace = f.ns
	if _, err := deployments.UpdateStatus(t.Context(), missing, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("status of a missing object: %v", err)
	}
}
