package e2e

import (
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// storageSteps are what TestStorageSuite does to objects while pods use them.
var storageSteps = []appTest{
	{"optional updates", stepOptionalUpdates},
	{"downward updates", stepDownwardUpdates},
	{"immutable", stepImmutable},
	{"restart after a change", stepRestartAfterChange},
	{"many volumes", stepManyVolumes},
	{"shared", stepShared},
	{"API of storage", stepStorageAPI},
	{"status of volumes", stepVolumeStatus},
	{"claims in use", stepClaimsInUse},
	{"local volumes", stepLocalVolumes},
}

// exec runs a program in the first container of a pod and returns its output.
func (a *apps) exec(pod string, command ...string) string {
	a.t.Helper()
	out, err := a.tryKubectl("", append([]string{"-n", a.ns, "exec", pod, "--"}, command...)...)
	if err != nil {
		a.t.Fatalf("%s: %q: %v\n%s", pod, command, err, out)
	}
	return out
}

// reads waits until a file in a pod holds what it should; "" means: is absent.
func (a *apps) reads(pod, file, want string) {
	a.t.Helper()
	a.until(fmt.Sprintf("%s of %s holds %q", file, pod, want), func() string {
		out, err := a.tryKubectl("", "-n", a.ns, "exec", pod, "--", "cat", file)
		if want == "" && err != nil && strings.Contains(out, "no such file") || want != "" && err == nil && out == want {
			return ""
		}
		return fmt.Sprintf("%q, %v", out, err)
	})
}

// stepOptionalUpdates: what is optional comes, changes and goes under a running
// pod, for each kind and also projected.
func stepOptionalUpdates(a *apps) {
	const kinds = "configmap secret"
	a.make(`
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: berth.dev/toolbox:1
    command: [pause]
    volumeMounts: [{name: c, mountPath: /configmap/coming}, {name: ch, mountPath: /configmap/changing}, {name: g, mountPath: ` +
		`/configmap/going},
      {name: sc, mountPath: /secret/coming}, {name: sch, mountPath: /secret/changing}, {name: sg, mountPath: /secret/going}, {name: p, ` +
		`mountPath: /projected}]
  volumes:
  - {name: c, configMap: {name: coming, optional: true}}
  - {name: ch, configMap: {name: changing, optional: true}}
  - {name: g, configMap: {name: going, optional: true}}
  - {name: sc, secret: {secretName: coming, optional: true}}
  - {name: sch, secret: {secretName: changing, optional: true}}
  - {name: sg, secret: {secretName: going, optional: true}}
  - name: p
    projected: {sources: [
      {configMap: {name: coming, optional: true, items: [{key: data-1, path: configmap/coming}]}}, {configMap: {name: changing, ` +
		`optional: true, items: [{key: data-1, path: configmap/changing}]}},
      {configMap: {name: going, optional: true, items: [{key: data-1, path: configmap/going}]}}, {secret: {name: coming, optional: true, ` +
		`items: [{key: data-1, path: secret/coming}]}},
      {secret: {name: changing, optional: true, items: [{key: data-1, path: secret/changing}]}}, {secret: {name: going, optional: true, ` +
		`items: [{key: data-1, path: secret/going}]}}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: changing}, data: {data-1: value-1}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: going}, data: {data-1: value-1}}
---
{apiVersion: v1, kind: Secret, metadata: {name: changing}, stringData: {data-1: value-1}}
---
{apiVersion: v1, kind: Secret, metadata: {name: going}, stringData: {data-1: value-1}}
`)
	a.until("the reader runs", func() string { return a.notReady("reader") })
	a.reads("reader", "/projected/secret/changing", "value-1")
	for _, kind := range strings.Fields(kinds) {
		a.reads("reader", "/"+kind+"/going/data-1", "value-1")
		a.reads("reader", "/"+kind+"/coming/data-1", "")
		data := "stringData"
		if kind == "configmap" {
			data = "data"
		}
		a.make(fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: coming}, %s: {data-1: value-1}}",
			map[string]string{"configmap": "ConfigMap", "secret": "Secret"}[kind], data))
		a.k("patch", kind, "changing", "-p", fmt.Sprintf(`{%q:{"data-1":"value-2"}}`, data))
		a.k("delete", kind, "going")
	}
	for _, kind := range strings.Fields(kinds) {
		for file, want := range map[string]string{"coming": "value-1", "changing": "value-2", "going": ""} {
			a.reads("reader", "/"+kind+"/"+file+"/data-1", want)
			a.reads("reader", "/projected/"+kind+"/"+file, want)
		}
	}
}

// notReady says why a pod is not ready, "" if it is.
func (a *apps) notReady(name string) string {
	p, err := a.api.CoreV1().Pods(a.ns).Get(a.ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err.Error()
	case !podReady(p):
		return describe(p)
	}
	return ""
}

func stepDownwardUpdates(a *apps) {
	const fields = `[{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: annotations, fieldRef: {fieldPath: ` +
		`metadata.annotations}}]`
	a.make(`
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {key1: value1, key2: value2}, annotations: {builder: bar}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], volumeMounts: [{name: d, mountPath: /d}, {name: p, mountPath: /p}]}]
  volumes: [{name: d, downwardAPI: {items: ` + fields + `}}, {name: p, projected: {sources: [{downwardAPI: {items: ` + fields + `}}]}}]
`)
	a.until("the reader runs", func() string { return a.notReady("reader") })
	a.reads("reader", "/d/labels", "key1=\"value1\"\nkey2=\"value2\"")
	if got := a.exec("reader", "cat", "/p/annotations"); !strings.Contains(got, "builder=\"bar\"\n") {
		t := a.t
		t.Errorf("the annotations are\n%s", got)
	}
	a.k("label", "pod", "reader", "key3=value3")
	a.k("annotate", "--overwrite", "pod", "reader", "builder=foo")
	a.reads("reader", "/d/labels", "key1=\"value1\"\nkey2=\"value2\"\nkey3=\"value3\"")
	a.until("the annotation changes", func() string {
		if got := a.exec("reader", "cat", "/p/annotations"); !strings.Contains(got, `builder="foo"`) {
			return got
		}
		return ""
	})
}

// stepImmutable: data and the mark itself stay, labels may change, deletion is free.
func stepImmutable(a *apps) {
	for _, kind := range []string{"configmap", "secret"} {
		switch kind {
		case "configmap":
			a.k("create", kind, "frozen", "--from-literal=key=value-1")
		default:
			a.k("create", kind, "generic", "frozen", "--from-literal=key=value-1")
		}
		patch := func(patch string) error {
			_, err := a.tryKubectl("", "-n", a.ns, "patch", kind, "frozen", "-p", patch)
			return err
		}
		for _, c := range []struct {
			patch string
			ok    bool
		}{
			{`{"data":{"key":"dmFsdWUtMg=="}}`, true}, {`{"immutable":true}`, true}, {`{"data":{"key":"dmFsdWUtMw=="}}`, false},
			{`{"immutable":null}`, false},
			{`{"immutable":false}`, false}, {`{"metadata":{"labels":{"a":"b"}}}`, true},
		} {
			if err := patch(c.patch); err == nil != c.ok {
				a.t.Errorf("%s: patching with %s: %v", kind, c.patch, err)
			}
		}
		a.k("delete", kind, "frozen")
	}
}

// stepRestartAfterChange: a container whose subPath file was replaced below it
// starts again and sees the new one.
func stepRestartAfterChange(a *apps) {
	a.make(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: old}}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: OnFailure
  containers:
  - name: c
    image: berth.dev/toolbox:1
    command: [sh, -c, "touch /w/well; pause"]
    livenessProbe: {exec: {command: [cat, /w/well]}, failureThreshold: 1, periodSeconds: 1}
    volumeMounts: [{name: v, mountPath: /v, subPath: key}, {name: w, mountPath: /w}, {name: w, mountPath: /dir, subPath: d}]
  volumes: [{name: v, configMap: {name: conf}}, {name: w, emptyDir: {}}]
`)
	a.until("the reader runs", func() string { return a.notReady("reader") })
	a.k("patch", "configmap", "conf", "-p", `{"data":{"key":"new"}}`)
	a.reads("reader", "/v", "old")
	a.exec("reader", "put", "0644", "/dir/kept", "yes")
	a.exec("reader", "rm", "/w/well")
	a.until("the container restarted", func() string {
		p, err := a.api.CoreV1().Pods(a.ns).Get(a.ctx, "reader", metav1.GetOptions{})
		if err != nil || containerStatus(p, "c").RestartCount == 0 || !podReady(p) {
			return fmt.Sprint(err, describe(p))
		}
		return ""
	})
	a.reads("reader", "/v", "new")
	a.reads("reader", "/dir/kept", "yes")
}

// stepManyVolumes: five pods that mount fifty configMaps each, and secret and
// configMap of one name side by side.
func stepManyVolumes(a *apps) {
	var b strings.Builder
	var volumes, mounts []string
	for i := range 50 {
		fmt.Fprintf(&b, "{apiVersion: v1, kind: ConfigMap, metadata: {name: many-%d}, data: {data-1: value-1}}\n---\n", i)
		volumes = append(volumes, fmt.Sprintf("{name: v%d, configMap: {name: many-%[1]d, items: [{key: data-1, path: data-1}]}}", i))
		mounts = append(mounts, fmt.Sprintf("{name: v%d, mountPath: /etc/v%[1]d}", i))
	}
	fmt.Fprintf(&b, `
{apiVersion: v1, kind: Secret, metadata: {name: many-0}, stringData: {data-1: hidden}}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: many}
spec:
  replicas: 5
  selector: {app: many}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], volumeMounts: [{name: s, mountPath: /secret}, %s]}]
      volumes: [{name: s, secret: {secretName: many-0}}, %s]
`, strings.Join(mounts, ", "), strings.Join(volumes, ", "))
	a.make(b.String())
	for _, p := range a.ready("app=many", 5) {
		if got := a.exec(p.Name, "cat", "/etc/v0/data-1", "/etc/v49/data-1", "/secret/data-1"); got != "value-1value-1hidden" {
			a.t.Errorf("%s reads %q", p.Name, got)
		}
		for _, e := range a.podEvents(&p) {
			if strings.HasPrefix(e, "FailedMount") {
				a.t.Errorf("%s: %s", p.Name, e)
			}
		}
	}
}

func stepShared(a *apps) {
	a.make(`
apiVersion: v1
kind: Pod
metadata: {name: shared, annotations: {kubectl.kubernetes.io/default-container: main}}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - {name: main, image: berth.dev/toolbox:1, command: [pause], volumeMounts: [{name: v, mountPath: /usr/share/v}]}
  - {name: sub, image: berth.dev/toolbox:1, command: [sh, -c, "echo hello > /pod-data/f"], volumeMounts: [{name: v, mountPath: /pod-data}]}
  volumes: [{name: v, emptyDir: {}}]
`)
	a.until("the main container runs", func() string {
		p, err := a.api.CoreV1().Pods(a.ns).Get(a.ctx, "shared", metav1.GetOptions{})
		if err != nil || stateOf(containerStatus(p, "main")) != "running" {
			return fmt.Sprint(err)
		}
		return ""
	})
	a.reads("shared", "/usr/share/v/f", "hello\n")
}

// stepStorageAPI takes one object of each storage kind through its life.
func stepStorageAPI(a *apps) {
	node := a.nodeName()
	for _, o := range []struct{ path, manifest string }{
		{"/apis/storage.k8s.io/v1/csidrivers",
			`{"kind":"CSIDriver","spec":{"attachRequired":false,"podInfoOnMount":true,"volumeLifecycleModes":["Ephemeral"]}}`},
		{"/apis/storage.k8s.io/v1/csinodes", `{"kind":"CSINode","spec":{"drivers":[]}}`},
		{"/apis/storage.k8s.io/v1/storageclasses", `{"kind":"StorageClass","provisioner":"e2e-fake-provisioner"}`},
		{"/apis/storage.k8s.io/v1/volumeattributesclasses",
			`{"kind":"VolumeAttributesClass","driverName":"e2e-fake-csi-driver","parameters":{"speed":"fast"}}`},
		{"/apis/storage.k8s.io/v1/volumeattachments",
			`{"kind":"VolumeAttachment","spec":{"attacher":"e2e-test.storage.k8s.io","nodeName":"` + node +
				`","source":{"persistentVolumeName":"pv-e2e"}}}`},
		{"/apis/storage.k8s.io/v1/namespaces/" + a.ns + "/csistoragecapacities",
			`{"kind":"CSIStorageCapacity","storageClassName":"a","nodeTopology":{},"capacity":"1Gi"}`},
		{"/apis/node.k8s.io/v1/runtimeclasses", `{"kind":"RuntimeClass","handler":"opaque"}`},
		{"/api/v1/persistentvolumes",
			`{"kind":"PersistentVolume","spec":{"storageClassName":"e2e-none","accessModes":["ReadWriteOnce"],` +
				`"capacity":{"storage":"2Gi"},"persistentVolumeReclaimPolicy":"Retain","hostPath":{"path":"/tmp/unused"}}}`},
		{"/api/v1/namespaces/" + a.ns + "/persistentvolumeclaims",
			`{"kind":"PersistentVolumeClaim","spec":{"storageClassName":"e2e-none-either","accessModes":["ReadWriteOnce"],` +
				`"resources":{"requests":{"storage":"1Gi"}}}}`},
		{"/api/v1/namespaces/" + a.ns + "/podtemplates",
			`{"kind":"PodTemplate","template":{"spec":{"containers":[{"name":"c","image":"x"}]}}}`},
		{"/apis/coordination.k8s.io/v1/namespaces/" + a.ns + "/leases",
			`{"kind":"Lease","spec":{"holderIdentity":"holder","leaseDurationSeconds":30,"acquireTime":"2026-01-01T00:00:00.000001Z",` +
				`"renewTime":"2026-01-01T00:00:05.000000Z","leaseTransitions":0}}`},
		{"/api/v1/namespaces/" + a.ns + "/pods",
			`{"kind":"Pod","spec":{"nodeName":"nowhere","containers":[{"name":"c","image":"x"}],"volumes":[{"name":"v",` +
				`"csi":{"driver":"e2e.example.com"}}]}}`},
	} {
		a.lifecycle(o.path, o.manifest)
	}
}

// lifecycle creates, reads, patches, lists, updates and deletes an object, then
// makes two more that go together by label, while a watch sees all of it.
func (a *apps) lifecycle(path, manifest string) {
	a.t.Helper()
	rest := a.api.CoreV1().RESTClient()
	const mark = "e2e-life"
	call := func(verb, sub, kind, body string) *unstructured.Unstructured {
		a.t.Helper()
		r := rest.Verb(verb).AbsPath(path+sub).SetHeader("Accept", "application/json")
		if body != "" {
			r = r.Body([]byte(body)).SetHeader("Content-Type", kind)
		}
		data, err := r.DoRaw(a.ctx)
		if err != nil {
			a.t.Fatalf("%s %s%s: %v: %s", verb, path, sub, err, data)
		}
		out := &unstructured.Unstructured{}
		a.must(json.Unmarshal(data, &out.Object))
		return out
	}
	list := func(selector string) int {
		a.t.Helper()
		data, err := rest.Get().AbsPath(path).Param("labelSelector", selector).DoRaw(a.ctx)
		a.must(err)
		out := &unstructured.UnstructuredList{}
		a.must(out.UnmarshalJSON(data))
		return len(out.Items)
	}
	create := func(name, label string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		a.must(json.Unmarshal([]byte(manifest), &o.Object))
		group := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
		o.SetAPIVersion("v1")
		if strings.HasPrefix(path, "/apis/") {
			o.SetAPIVersion(group[0] + "/" + group[1])
		}
		o.SetName(name)
		o.SetLabels(map[string]string{mark: label})
		body, err := o.MarshalJSON()
		a.must(err)
		return call("POST", "", "application/json", string(body))
	}
	gone := func(selector string) {
		a.t.Helper()
		a.until(path+" "+selector+" is gone", func() string {
			if n := list(selector); n > 0 {
				return fmt.Sprint(n, " left")
			}
			return ""
		})
	}
	made := create("one", "made")
	if got := call("GET", "/one", "", ""); got.GetUID() != made.GetUID() {
		a.t.Errorf("%s: read %s, made %s", path, got.GetUID(), made.GetUID())
	}
	for _, kind := range []types.PatchType{types.StrategicMergePatchType, types.MergePatchType} {
		if got := call("PATCH", "/one", string(kind), `{"metadata":{"labels":{"`+mark+
			`":"patched"}}}`); got.GetLabels()[mark] != "patched" {
			a.t.Errorf("%s: patched to %v", path, got.GetLabels())
		}
	}
	if n := list(mark + "=patched"); n != 1 {
		a.t.Errorf("%s: %d patched ones", path, n)
	}
	a.until(path+"/one is updated", func() string { // a controller may have written in between
		now := call("GET", "/one", "", "")
		now.SetLabels(map[string]string{mark: "updated"})
		body, err := now.MarshalJSON()
		a.must(err)
		err = rest.Put().AbsPath(path+"/one").SetHeader("Content-Type", "application/json").Body(body).Do(a.ctx).Error()
		if err != nil && !apierrors.IsConflict(err) {
			a.t.Fatalf("PUT %s/one: %v", path, err)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if n := list(mark + "=updated"); n != 1 {
		a.t.Errorf("%s: %d updated ones", path, n)
	}
	call("DELETE", "/one", "application/json", `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`)
	gone(mark + "=updated")
	if err := rest.Get().AbsPath(path + "/one").Do(a.ctx).Error(); !apierrors.IsNotFound(err) {
		a.t.Errorf("%s: after the deletion: %v", path, err)
	}
	create("two", "together")
	create("three", "together")
	create("four", "apart")
	if n := list(mark + " in (together,apart)"); n != 3 {
		a.t.Errorf("%s: %d objects, want 3", path, n)
	}
	a.must(rest.Delete().AbsPath(path).Param("labelSelector", mark+"=together").Param("gracePeriodSeconds", "0").Do(a.ctx).Error())
	gone(mark + "=together")
	if n := list(mark + "=apart"); n != 1 {
		a.t.Errorf("%s: the other one went too", path)
	}
	call("DELETE", "/four", "", "")
	gone(mark)
}

// stepVolumeStatus reads, patches and updates the status of an attachment, a
// volume and a claim.
func stepVolumeStatus(a *apps) {
	a.make(`
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: status-e2e}, spec: {attacher: e2e-test.storage.k8s.io, ` +
		`nodeName: ` + a.nodeName() + `, source: {persistentVolumeName: pv-none}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: status-e2e}, spec: {storageClassName: e2e-status, accessModes: [ReadWriteOnce],` +
		` capacity: {storage: 2Gi}, hostPath: {path: /tmp/unused}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: status-e2e}, spec: {storageClassName: e2e-status, volumeName: status-e2e, ` +
		`accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
`)
	// A change of phase clears the message, so the volume is bound first.
	a.untilField("pvc/status-e2e", "{.status.phase}", "Bound")
	a.untilField("pv/status-e2e", "{.status.phase}", "Bound")
	for _, c := range []struct{ object, patch, path, want string }{
		{"volumeattachment/status-e2e", `{"status":{"attached":true}}`, "{.status.attached}", "true"},
		{"volumeattachment/status-e2e", `{"status":{"attached":false}}`, "{.status.attached}", "false"},
		{"pv/status-e2e", `{"status":{"message":"StatusPatched","reason":"E2E patchedStatus"}}`, "{.status.message}", "StatusPatched"},
		{"pvc/status-e2e", `{"status":{"conditions":[{"type":"StatusPatched","status":"True","reason":"E2E"}]}}`,
			`{.status.conditions[?(@.type=="StatusPatched")].status}`, "True"},
	} {
		a.k("patch", c.object, "--subresource=status", "--type=merge", "-p", c.patch)
		if got := a.k("get", c.object, "--subresource=status", "-o", "jsonpath="+c.path); got != c.want {
			a.t.Errorf("%s: after %s: %q", c.object, c.patch, got)
		}
	}
	a.k("delete", "volumeattachment", "status-e2e")
	a.k("delete", "pvc", "status-e2e")
	a.untilField("pv/status-e2e", "{.status.phase}", "Released")
	a.k("delete", "pv", "status-e2e")
}
