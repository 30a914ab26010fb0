package storage

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// storageSteps are what TestStorageSuite does to objects while pods use them.
var storageSteps = []kit.Subtest{
	{Name: "optional updates", Run: stepOptionalUpdates},
	{Name: "downward updates", Run: stepDownwardUpdates},
	{Name: "immutable", Run: stepImmutable},
	{Name: "restart after a change", Run: stepRestartAfterChange},
	{Name: "many volumes", Run: stepManyVolumes},
	{Name: "shared", Run: stepShared},
	{Name: "API of storage", Run: stepStorageAPI},
	{Name: "status of volumes", Run: stepVolumeStatus},
	{Name: "claims in use", Run: stepClaimsInUse},
	{Name: "local volumes", Run: stepLocalVolumes},
}

// execIn runs a program in the first container of a pod and returns its output.
func execIn(a *kit.Namespace, pod string, command ...string) string {
	a.T.Helper()
	out, err := a.TryKubectl("", append([]string{"-n", a.Name, "exec", pod, "--"}, command...)...)
	if err != nil {
		a.T.Fatalf("%s: %q: %v\n%s", pod, command, err, out)
	}
	return out
}

// reads waits until a file in a pod holds what it should; "" means: is absent.
func reads(a *kit.Namespace, pod, file, want string) {
	a.T.Helper()
	a.Until(fmt.Sprintf("%s of %s holds %q", file, pod, want), func() string {
		out, err := a.TryKubectl("", "-n", a.Name, "exec", pod, "--", "cat", file)
		if want == "" && err != nil && strings.Contains(out, "no such file") || want != "" && err == nil && out == want {
			return ""
		}
		return fmt.Sprintf("%q, %v", out, err)
	})
}

// stepOptionalUpdates: what is optional comes, changes and goes under a running
// pod, for each kind and also projected.
func stepOptionalUpdates(a *kit.Namespace) {
	const kinds = "configmap secret"
	a.Make(`
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
	a.Until("the reader runs", func() string { return notReady(a, "reader") })
	reads(a, "reader", "/projected/secret/changing", "value-1")
	for _, kind := range strings.Fields(kinds) {
		reads(a, "reader", "/"+kind+"/going/data-1", "value-1")
		reads(a, "reader", "/"+kind+"/coming/data-1", "")
		data := "stringData"
		if kind == "configmap" {
			data = "data"
		}
		a.Make(fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: coming}, %s: {data-1: value-1}}",
			map[string]string{"configmap": "ConfigMap", "secret": "Secret"}[kind], data))
		a.K("patch", kind, "changing", "-p", fmt.Sprintf(`{%q:{"data-1":"value-2"}}`, data))
		a.K("delete", kind, "going")
	}
	for _, kind := range strings.Fields(kinds) {
		for file, want := range map[string]string{"coming": "value-1", "changing": "value-2", "going": ""} {
			reads(a, "reader", "/"+kind+"/"+file+"/data-1", want)
			reads(a, "reader", "/projected/"+kind+"/"+file, want)
		}
	}
}

// notReady says why a pod is not ready, "" if it is.
func notReady(a *kit.Namespace, name string) string {
	p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err.Error()
	case !kit.PodReady(p):
		return kit.Describe(p)
	}
	return ""
}

func stepDownwardUpdates(a *kit.Namespace) {
	const fields = `[{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: annotations, fieldRef: {fieldPath: ` +
		`metadata.annotations}}]`
	a.Make(`
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {key1: value1, key2: value2}, annotations: {builder: bar}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], volumeMounts: [{name: d, mountPath: /d}, {name: p, mountPath: /p}]}]
  volumes: [{name: d, downwardAPI: {items: ` + fields + `}}, {name: p, projected: {sources: [{downwardAPI: {items: ` + fields + `}}]}}]
`)
	a.Until("the reader runs", func() string { return notReady(a, "reader") })
	reads(a, "reader", "/d/labels", "key1=\"value1\"\nkey2=\"value2\"")
	if got := execIn(a, "reader", "cat", "/p/annotations"); !strings.Contains(got, "builder=\"bar\"\n") {
		t := a.T
		t.Errorf("the annotations are\n%s", got)
	}
	a.K("label", "pod", "reader", "key3=value3")
	a.K("annotate", "--overwrite", "pod", "reader", "builder=foo")
	reads(a, "reader", "/d/labels", "key1=\"value1\"\nkey2=\"value2\"\nkey3=\"value3\"")
	a.Until("the annotation changes", func() string {
		if got := execIn(a, "reader", "cat", "/p/annotations"); !strings.Contains(got, `builder="foo"`) {
			return got
		}
		return ""
	})
}

// stepImmutable: data and the mark itself stay, labels may change, deletion is free.
func stepImmutable(a *kit.Namespace) {
	for _, kind := range []string{"configmap", "secret"} {
		switch kind {
		case "configmap":
			a.K("create", kind, "frozen", "--from-literal=key=value-1")
		default:
			a.K("create", kind, "generic", "frozen", "--from-literal=key=value-1")
		}
		patch := func(patch string) error {
			_, err := a.TryKubectl("", "-n", a.Name, "patch", kind, "frozen", "-p", patch)
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
				a.T.Errorf("%s: patching with %s: %v", kind, c.patch, err)
			}
		}
		a.K("delete", kind, "frozen")
	}
}

// stepRestartAfterChange: a container whose subPath file was replaced below it
// starts again and sees the new one.
func stepRestartAfterChange(a *kit.Namespace) {
	a.Make(`
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
	a.Until("the reader runs", func() string { return notReady(a, "reader") })
	a.K("patch", "configmap", "conf", "-p", `{"data":{"key":"new"}}`)
	reads(a, "reader", "/v", "old")
	execIn(a, "reader", "put", "0644", "/dir/kept", "yes")
	execIn(a, "reader", "rm", "/w/well")
	a.Until("the container restarted", func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, "reader", metav1.GetOptions{})
		if err != nil || kit.ContainerStatus(p, "c").RestartCount == 0 || !kit.PodReady(p) {
			return fmt.Sprint(err, kit.Describe(p))
		}
		return ""
	})
	reads(a, "reader", "/v", "new")
	reads(a, "reader", "/dir/kept", "yes")
}

// stepManyVolumes: five pods that mount fifty configMaps each, and secret and
// configMap of one name side by side.
func stepManyVolumes(a *kit.Namespace) {
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
	a.Make(b.String())
	for _, p := range a.Ready("app=many", 5) {
		if got := execIn(a, p.Name, "cat", "/etc/v0/data-1", "/etc/v49/data-1", "/secret/data-1"); got != "value-1value-1hidden" {
			a.T.Errorf("%s reads %q", p.Name, got)
		}
		for _, e := range a.PodEvents(&p) {
			if strings.HasPrefix(e, "FailedMount") {
				a.T.Errorf("%s: %s", p.Name, e)
			}
		}
	}
}

func stepShared(a *kit.Namespace) {
	a.Make(`
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
	a.Until("the main container runs", func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, "shared", metav1.GetOptions{})
		if err != nil || kit.StateOf(kit.ContainerStatus(p, "main")) != "running" {
			return fmt.Sprint(err)
		}
		return ""
	})
	reads(a, "shared", "/usr/share/v/f", "hello\n")
}

// stepStorageAPI takes one object of each storage kind through its life.
func stepStorageAPI(a *kit.Namespace) {
	node := a.NodeName()
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
		{"/apis/storage.k8s.io/v1/namespaces/" + a.Name + "/csistoragecapacities",
			`{"kind":"CSIStorageCapacity","storageClassName":"a","nodeTopology":{},"capacity":"1Gi"}`},
		{"/apis/node.k8s.io/v1/runtimeclasses", `{"kind":"RuntimeClass","handler":"opaque"}`},
		{"/api/v1/persistentvolumes",
			`{"kind":"PersistentVolume","spec":{"storageClassName":"e2e-none","accessModes":["ReadWriteOnce"],` +
				`"capacity":{"storage":"2Gi"},"persistentVolumeReclaimPolicy":"Retain","hostPath":{"path":"/tmp/unused"}}}`},
		{"/api/v1/namespaces/" + a.Name + "/persistentvolumeclaims",
			`{"kind":"PersistentVolumeClaim","spec":{"storageClassName":"e2e-none-either","accessModes":["ReadWriteOnce"],` +
				`"resources":{"requests":{"storage":"1Gi"}}}}`},
		{"/api/v1/namespaces/" + a.Name + "/podtemplates",
			`{"kind":"PodTemplate","template":{"spec":{"containers":[{"name":"c","image":"x"}]}}}`},
		{"/apis/coordination.k8s.io/v1/namespaces/" + a.Name + "/leases",
			`{"kind":"Lease","spec":{"holderIdentity":"holder","leaseDurationSeconds":30,"acquireTime":"2026-01-01T00:00:00.000001Z",` +
				`"renewTime":"2026-01-01T00:00:05.000000Z","leaseTransitions":0}}`},
		{"/api/v1/namespaces/" + a.Name + "/pods",
			`{"kind":"Pod","spec":{"nodeName":"nowhere","containers":[{"name":"c","image":"x"}],"volumes":[{"name":"v",` +
				`"csi":{"driver":"e2e.example.com"}}]}}`},
	} {
		a.Lifecycle(o.path, o.manifest)
	}
}

// stepVolumeStatus reads, patches and updates the status of an attachment, a
// volume and a claim.
func stepVolumeStatus(a *kit.Namespace) {
	a.Make(`
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: status-e2e}, spec: {attacher: e2e-test.storage.k8s.io, ` +
		`nodeName: ` + a.NodeName() + `, source: {persistentVolumeName: pv-none}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: status-e2e}, spec: {storageClassName: e2e-status, accessModes: [ReadWriteOnce],` +
		` capacity: {storage: 2Gi}, hostPath: {path: /tmp/unused}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: status-e2e}, spec: {storageClassName: e2e-status, volumeName: status-e2e, ` +
		`accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
`)
	// A change of phase clears the message, so the volume is bound first.
	a.UntilField("pvc/status-e2e", "{.status.phase}", "Bound")
	a.UntilField("pv/status-e2e", "{.status.phase}", "Bound")
	for _, c := range []struct{ object, patch, path, want string }{
		{"volumeattachment/status-e2e", `{"status":{"attached":true}}`, "{.status.attached}", "true"},
		{"volumeattachment/status-e2e", `{"status":{"attached":false}}`, "{.status.attached}", "false"},
		{"pv/status-e2e", `{"status":{"message":"StatusPatched","reason":"E2E patchedStatus"}}`, "{.status.message}", "StatusPatched"},
		{"pvc/status-e2e", `{"status":{"conditions":[{"type":"StatusPatched","status":"True","reason":"E2E"}]}}`,
			`{.status.conditions[?(@.type=="StatusPatched")].status}`, "True"},
	} {
		a.K("patch", c.object, "--subresource=status", "--type=merge", "-p", c.patch)
		if got := a.K("get", c.object, "--subresource=status", "-o", "jsonpath="+c.path); got != c.want {
			a.T.Errorf("%s: after %s: %q", c.object, c.patch, got)
		}
	}
	a.K("delete", "volumeattachment", "status-e2e")
	a.K("delete", "pvc", "status-e2e")
	a.UntilField("pv/status-e2e", "{.status.phase}", "Released")
	a.K("delete", "pv", "status-e2e")
}
