package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestStorageSuite asks, on real containers, what upstream's suite asks of the
// volumes that an agent fills itself: contents, owners and modes as a program
// in the container sees them, what is optional, what changes, what is refused.
// See docs/conformance.md for which upstream test each subtest stands for.
func TestStorageSuite(t *testing.T) {
	kit.OnlyInAll(t, "131 s; TestVolumes and TestLocalVolumes run")
	c := kit.NewCluster(t)
	c.Up()
	host := hostPathTree(t)
	c.Apply(storageObjects)
	var pods []*v1.Pod
	for _, group := range [][]mountCase{payloadCases(), downwardCases, emptyDirCases(), hostPathCases(host), subPathCases} {
		for _, m := range group {
			pods = append(pods, m.pod(t))
		}
	}
	c.RunPods(t, pods)
	for _, step := range storageSteps {
		t.Run(step.Name, func(t *testing.T) {
			ns := strings.ToLower(strings.NewReplacer("/", "-", " ", "-").Replace(step.Name))
			step.Run(kit.NewNamespace(t, c, ns))
		})
	}
}

const storageObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {data-1: value-1, data-2: value-2}
binaryData: {dump.bin: 3q2+7w==}
---
apiVersion: v1
kind: Secret
metadata: {name: conf}
stringData: {data-1: value-1, data-2: value-2}
---
apiVersion: v1
kind: Namespace
metadata: {name: elsewhere}
---
apiVersion: v1
kind: Secret
metadata: {name: conf, namespace: elsewhere}
stringData: {data-1: another}
`

// mountCase is a pod with one volume "v" at /v that runs a script and what must
// come of it; see testdata/pods.yaml for the words of expect.
type mountCase struct {
	name     string
	volume   string // YAML of the volume's source
	security string // YAML of the pod's security context
	run      string
	init     string            // script of an init container that has the volume too
	mount    string            // YAML added to the container's mount
	limits   string            // YAML of the container's resources
	expect   map[string]string // annotations
	env      string            // YAML of the container's environment
}

func (m mountCase) pod(t *testing.T) *v1.Pod {
	t.Helper()
	if m.security == "" {
		m.security = "{}"
	}
	if m.limits == "" {
		m.limits = "{}"
	}
	if m.mount == "" {
		m.mount = "mountPath: /v"
	}
	if m.env == "" {
		m.env = "[]"
	}
	p := &v1.Pod{}
	text := fmt.Sprintf(`
metadata: {name: %q}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: %s
  volumes: [{name: v, %s}]
  containers: [{name: c, image: berth.dev/toolbox:1, command: [sh, -c, %q], resources: %s, env: %s, volumeMounts: [{name: v, %s}]}]
`, m.name, m.security, m.volume, m.run, m.limits, m.env, m.mount)
	if m.init != "" {
		text += fmt.Sprintf("  initContainers: [{name: i, image: berth.dev/toolbox:1, command: [sh, -c, %q], volumeMounts: [{name: v, "+
			"mountPath: /v}]}]\n", m.init)
	}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatalf("%s: %v\n%s", m.name, err, text)
	}
	p.Annotations = m.expect
	return p
}

// sees expects that the pod succeeds and prints lines that match the patterns.
func sees(patterns ...string) map[string]string {
	return map[string]string{"phase": "Succeeded", "log": strings.Join(patterns, "\n")}
}

// payloadCases are those that configMaps, secrets and both of them projected
// have in common. Kind is the volume's own word; mode is written in decimal, as
// the API has it.
func payloadCases() (out []mountCase) {
	for _, k := range []struct {
		name   string
		volume func(mode, rest string) string
		disk   string
	}{
		{"configmap", func(mode, rest string) string { return "configMap: {name: conf, " + mode + rest + "}" }, "disk"},
		{"secret", func(mode, rest string) string { return "secret: {secretName: conf, " + mode + rest + "}" }, "tmpfs"},
		{"projected-configmap", func(mode, rest string) string {
			return "projected: {" + mode + "sources: [{configMap: {name: conf, " + rest + "}}]}"
		}, "tmpfs"},
		{"projected-secret", func(mode, rest string) string {
			return "projected: {" + mode + "sources: [{secret: {name: conf, " + rest + "}}]}"
		}, "tmpfs"},
	} {
		const mapped, mappedMode = "items: [{key: data-2, path: path/to/data-2}]", "items: [{key: data-2, path: path/to/data-2, mode: 256}]"
		line := func(file, mode string, gid int) string {
			text := "value-1"
			if strings.HasSuffix(file, "2") {
				text = "value-2"
			}
			return fmt.Sprintf(`^/v/%s %s %s 0 %d %s$`, file, k.disk, mode, gid, text)
		}
		const user, group, both = "{runAsUser: 1000}", "{fsGroup: 1001}", "{runAsUser: 1000, fsGroup: 1001}"
		out = append(out,
			mountCase{name: k.name, volume: k.volume("", ""), run: "look /v/data-1", expect: sees(line("data-1", "-rw-r--r--", 0))},
			mountCase{name: k.name + "-mode", volume: k.volume("defaultMode: 256, ", ""), run: "look /v/data-1",
				expect: sees(line("data-1", "-r--------", 0))},
			mountCase{name: k.name + "-mode-group", volume: k.volume("defaultMode: 288, ", ""), security: both, run: "look /v/data-1",
				expect: sees(line("data-1", "-r--r-----", 1001))},
			mountCase{name: k.name + "-nonroot", volume: k.volume("", ""), security: user, run: "look /v/data-1",
				expect: sees(line("data-1", "-rw-r--r--", 0))},
			mountCase{name: k.name + "-nonroot-group", volume: k.volume("", ""), security: both, run: "look /v/data-1",
				expect: sees(line("data-1", "-rw-r--r--", 1001))},
			mountCase{name: k.name + "-group", volume: k.volume("", ""), security: group, run: "look /v/data-1",
				expect: sees(line("data-1", "-rw-r--r--", 1001))},
			mountCase{name: k.name + "-mapped", volume: k.volume("", mapped), run: "look /v/path/to/data-2; ls /v",
				expect: sees(line("path/to/data-2", "-rw-r--r--", 0), "^path$", "! data-1")},
			mountCase{name: k.name + "-mapped-mode", volume: k.volume("", mappedMode), run: "look /v/path/to/data-2",
				expect: sees(line("path/to/data-2", "-r--------", 0))},
			mountCase{name: k.name + "-mapped-nonroot", volume: k.volume("", mapped), security: both, run: "look /v/path/to/data-2",
				expect: sees(line("path/to/data-2", "-rw-r--r--", 1001))},
			mountCase{
				name: k.name + "-no-key", volume: k.volume("", "items: [{key: absent, path: x}]"), run: "id",
				expect: map[string]string{"phase": "Pending", "state": "c=waiting/ContainerCreating",
					"event": `FailedMount MountVolume.SetUp failed for volume "v" : .*references non-existent .*key`},
			},
			mountCase{name: k.name + "-optional", volume: strings.ReplaceAll(k.volume("", "optional: true"), "conf,", "nope,"),
				run: "ls /v; id", expect: sees("^uid=0")},
		)
	}
	return append(out,
		mountCase{name: "configmap-binary", volume: "configMap: {name: conf}", run: "look /v/dump.bin; stat /v/..data/dump.bin",
			expect: sees("^/v/dump.bin disk -rw-r--r-- 0 0 ", " 4 ")},
		mountCase{name: "configmap-absent", volume: "configMap: {name: nope}", run: "id", expect: map[string]string{"phase": "Pending",
			"state": "c=waiting/ContainerCreating",
			"event": `FailedMount MountVolume.SetUp failed for volume "v" : configmap "nope" not found`}},
		mountCase{name: "secret-absent", volume: "secret: {secretName: nope}", run: "id", expect: map[string]string{"phase": "Pending",
			"state": "c=waiting/ContainerCreating",
			"event": `FailedMount MountVolume.SetUp failed for volume "v" : secret "nope" not found`}},
		mountCase{
			name: "projected-all", run: "look /v/all/podname /v/all/secret-data /v/all/configmap-data", volume: `projected: {sources: [
				{downwardAPI: {items: [{path: all/podname, fieldRef: {fieldPath: metadata.name}}]}},
				{secret: {name: conf, items: [{key: data-1, path: all/secret-data}]}},
				{configMap: {name: conf, items: [{key: data-2, path: all/configmap-data}]}}]}`,
			expect: sees("/podname tmpfs -rw-r--r-- 0 0 projected-all$", "/secret-data .* value-1$", "/configmap-data .* value-2$"),
		},
	)
}

var downwardCases = []mountCase{
	{
		name: "downward", limits: "{requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 1250m, memory: 64Mi}}",
		volume: `downwardAPI: {items: [
			{path: podname, fieldRef: {fieldPath: metadata.name}}, {path: mode, mode: 256, fieldRef: {fieldPath: metadata.name}},
			{path: cpu_limit, resourceFieldRef: {containerName: c, resource: limits.cpu}}, {path: memory_limit, resourceFieldRef: ` +
			`{containerName: c, resource: limits.memory}},
			{path: cpu_request, resourceFieldRef: {containerName: c, resource: requests.cpu, divisor: 1m}},
			{path: memory_request, resourceFieldRef: {containerName: c, resource: requests.memory}}]}`,
		run: "look /v/podname /v/mode /v/cpu_limit /v/memory_limit /v/cpu_request /v/memory_request",
		expect: sees("/podname tmpfs -rw-r--r-- 0 0 downward$", "/mode tmpfs -r-------- ", "/cpu_limit .* 2$", "/memory_limit .* 67108864$",
			"/cpu_request .* 250$", "/memory_request .* 33554432$"),
	},
	{
		name: "downward-defaults", volume: `downwardAPI: {defaultMode: 256, items: [
			{path: cpu_limit, resourceFieldRef: {containerName: c, resource: limits.cpu}}, {path: memory_limit, resourceFieldRef: ` +
			`{containerName: c, resource: limits.memory}}]}`,
		run: "look /v/cpu_limit /v/memory_limit", expect: sees("/cpu_limit tmpfs -r-------- 0 0 [1-9][0-9]*$",
			"/memory_limit tmpfs -r-------- 0 0 [1-9][0-9]{8,}$"),
	},
	{
		name: "downward-group", security: "{runAsUser: 1000, fsGroup: 1001}", run: "look /v/podname",
		volume: "downwardAPI: {items: [{path: podname, fieldRef: {fieldPath: metadata.name}}]}",
		expect: sees("/podname tmpfs -rw-r--r-- 0 1001 downward-group$"),
	},
	{
		name: "downward-group-mode", security: "{runAsUser: 1000, fsGroup: 1001}", run: "look /v/podname",
		volume: "projected: {defaultMode: 288, sources: [{downwardAPI: {items: [{path: podname, fieldRef: {fieldPath: metadata.name}}]}}]}",
		expect: sees("/podname tmpfs -r--r----- 0 1001 downward-group-mode$"),
	},
}

// emptyDirCases: every medium, user and mode; and with a group.
func emptyDirCases() (out []mountCase) {
	for _, medium := range []struct{ name, source, disk string }{{"default", "emptyDir: {}", "disk"},
		{"memory", "emptyDir: {medium: Memory}", "tmpfs"}} {
		for _, user := range []string{"0", "1001"} {
			name := "empty-" + medium.name + "-" + user
			out = append(out,
				mountCase{
					name: name, volume: medium.source, security: "{runAsUser: " + user + "}",
					run: "look /v; for m in 644 666 777; do put 0$m /v/$m text; look /v/$m; done",
					expect: sees("^/v "+medium.disk+" drwxrwxrwx 0 0", "^/v/644 "+medium.disk+" -rw-r--r-- "+user+" 0 text$",
						"^/v/666 .* -rw-rw-rw- ", "^/v/777 .* -rwxrwxrwx "),
				},
				mountCase{
					name: name + "-group", volume: medium.source, security: "{runAsUser: " + user + ", fsGroup: 123}",
					run: "put 0644 /v/f text; mkdir /v/d; look /v /v/f /v/d",
					expect: sees("^/v "+medium.disk+" dgrwxrwxrwx 0 123", "^/v/f "+medium.disk+" -rw-r--r-- "+user+" 123 text$",
						"^/v/d .* "+user+" 123"),
				},
				mountCase{
					name: name + "-sub", volume: medium.source, security: "{runAsUser: " + user + ", fsGroup: 123}",
					mount: "mountPath: /v, subPath: made/here", run: "look /v; put 0644 /v/f text; look /v/f",
					expect: sees("^/v "+medium.disk+" dgrwxrwxrwx 0 123", "^/v/f "+medium.disk+" -rw-r--r-- "+user+" 123 text$"),
				})
		}
	}
	return append(out,
		mountCase{name: "empty-sized", volume: "emptyDir: {medium: Memory, sizeLimit: 10Mi}",
			run: "grep ' /v ' /proc/self/mounts; fill /v/f 11", expect: map[string]string{"phase": "Failed", "log": "size=10240k"}},
		mountCase{name: "empty-limited", volume: "emptyDir: {medium: Memory}", limits: "{limits: {memory: 32Mi}}",
			run: "grep ' /v ' /proc/self/mounts", expect: sees("size=32768k")},
	)
}

// hostPathTree has one of each kind that hostPath volumes tell apart.
func hostPathTree(t *testing.T) string {
	t.Helper()
	host := t.TempDir()
	kit.Must(t, os.Mkdir(filepath.Join(host, "dir"), 0o755))
	kit.Must(t, os.Chmod(filepath.Join(host, "dir"), 0o777|os.ModeSticky))
	kit.Must(t, os.WriteFile(filepath.Join(host, "file"), []byte("here"), 0o644))
	for name, mode := range map[string]uint32{"socket": syscall.S_IFSOCK, "char": syscall.S_IFCHR} {
		kit.Must(t, syscall.Mknod(filepath.Join(host, name), mode|0o600, 89<<8|1))
	}
	return host
}

func hostPathCases(host string) (out []mountCase) {
	kinds := map[string]string{"Directory": "directory", "File": "file", "Socket": "socket", "CharDevice": "character device",
		"BlockDevice": "block device"}
	are := map[string]string{"dir": "Directory", "file": "File", "socket": "Socket", "char": "CharDevice", "absent": ""}
	for name, is := range are {
		for want, word := range kinds {
			m := mountCase{
				name: "host-" + name + "-" + strings.ToLower(want), run: "id", volume: fmt.Sprintf("hostPath: {path: %s/%s, type: %s}",
					host, name, want),
				expect: map[string]string{"phase": "Pending", "event": fmt.Sprintf(`FailedMount .*%s/%s is not a %s`, host, name, word)},
			}
			if want == is {
				m.expect = sees("^uid=0")
			}
			out = append(out, m)
		}
	}
	return append(out,
		mountCase{name: "host-any", volume: "hostPath: {path: " + host + "/dir}", run: "look /v; put 0644 /v/f text; look /v/f",
			expect: sees("^/v disk dtrwxrwxrwx ", "^/v/f disk -rw-r--r-- 0 0 text$")},
		mountCase{name: "host-socket", volume: "hostPath: {path: " + host + "/socket}", run: "stat /v", expect: sees("^S")},
		mountCase{name: "host-made-dir", volume: "hostPath: {path: " + host + "/new/dir, type: DirectoryOrCreate}", run: "look /v",
			expect: sees("^/v disk drwxr-xr-x 0 0")},
		mountCase{name: "host-made-file", volume: "hostPath: {path: " + host + "/newfile, type: FileOrCreate}", run: "look /v",
			expect: sees("^/v disk -rw-r--r-- 0 0")},
		mountCase{name: "host-sub", volume: "hostPath: {path: " + host + "}", mount: "mountPath: /v, subPath: sub/path",
			run: "put 0644 /v/f text; look /v/f", expect: sees("^/v/f disk -rw-r--r-- 0 0 text$")},
	)
}

func refusedSub(message string) map[string]string {
	return map[string]string{"phase": "Pending", "state": "c=waiting/CreateContainerConfigError", "message": message}
}

var subPathCases = []mountCase{
	{name: "sub-absent", volume: "emptyDir: {}", mount: "mountPath: /v, subPath: not/yet", run: "put 0644 /v/f text; look /v/f",
		expect: sees("^/v/f disk -rw-r--r-- 0 0 text$")},
	{name: "sub-dir", volume: "emptyDir: {}", init: "mkdir /v/d; put 0644 /v/d/f text", mount: "mountPath: /v, subPath: d",
		run: "look /v/f", expect: sees("^/v/f disk .* text$")},
	{name: "sub-file", volume: "emptyDir: {}", init: "put 0644 /v/f text", mount: "mountPath: /v, subPath: f", run: "look /v",
		expect: sees("^/v disk -rw-r--r-- 0 0 text$")},
	{name: "sub-file-readonly", volume: "emptyDir: {}", init: "put 0644 /v/f text", mount: "mountPath: /v, subPath: f, readOnly: true",
		run: "look /v; put 0644 /v other", expect: map[string]string{"phase": "Failed", "log": "^/v disk .* text$\nread-only file system"}},
	{name: "sub-dir-readonly", volume: "emptyDir: {}", init: "mkdir /v/d; put 0644 /v/d/f text",
		mount: "mountPath: /v, subPath: d, readOnly: true", run: "look /v/f; touch /v/g", expect: map[string]string{"phase": "Failed",
			"log": "^/v/f disk .* text$\nread-only file system"}},
	{name: "sub-link-out", volume: "emptyDir: {}", init: "ln -s /bin /v/l", mount: "mountPath: /v, subPath: l", run: "id",
		expect: refusedSub("^failed to prepare subPath for volumeMount \"v\" of container \"c\"$")},
	{name: "sub-link-out-file", volume: "emptyDir: {}", init: "ln -s /bin/sh /v/l", mount: "mountPath: /v, subPath: l", run: "id",
		expect: refusedSub("subPath")},
	{name: "sub-link-absent", volume: "emptyDir: {}", init: "ln -s /bin/notanexistingpath /v/l", mount: "mountPath: /v, subPath: l",
		run: "id", expect: refusedSub("subPath")},
	{name: "sub-link-back", volume: "emptyDir: {}", init: "ln -s ../ /v/l", mount: "mountPath: /v, subPath: l", run: "id",
		expect: refusedSub("subPath")},
	{name: "sub-secret", volume: "secret: {secretName: conf}", mount: "mountPath: /v, subPath: data-1", run: "look /v",
		expect: sees("^/v tmpfs .* value-1$")},
	{name: "sub-configmap", volume: "configMap: {name: conf}", mount: "mountPath: /v, subPath: data-1", run: "look /v",
		expect: sees("^/v disk .* value-1$")},
	{name: "sub-configmap-file", volume: "configMap: {name: conf}", mount: "mountPath: /etc/resolv.conf, subPath: data-1",
		run: "look /etc/resolv.conf", expect: sees("^/etc/resolv.conf disk .* value-1$")},
	{name: "sub-downward", volume: "downwardAPI: {items: [{path: down/podname, fieldRef: {fieldPath: metadata.name}}]}",
		mount: "mountPath: /v, subPath: down/podname", run: "look /v", expect: sees("^/v tmpfs .* sub-downward$")},
	{name: "sub-projected", volume: "projected: {sources: [{configMap: {name: conf, items: [{key: data-1, path: p/data}]}}]}",
		mount: "mountPath: /v, subPath: p/data", run: "look /v", expect: sees("^/v tmpfs .* value-1$")},
	{name: "sub-expr-up", volume: "emptyDir: {}", mount: "mountPath: /v, subPathExpr: $(P)", run: "id", env: "[{name: P, value: ..}]",
		expect: refusedSub("subPath|SubPath")},
}

func claimPod(name, claim, command, extra string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  %s
  containers: [{name: c, image: berth.dev/toolbox:1, command: [sh, -c, %q], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}]
`, name, extra, command, claim)
}

// stepClaimsInUse: a claim that a pod uses, and a volume that a claim is bound
// to, stay until they are free; a pod for a claim that is going stays pending.
func stepClaimsInUse(a *kit.Namespace) {
	a.Make(`
{apiVersion: v1, kind: PersistentVolume, metadata: {name: in-use}, spec: {storageClassName: e2e-in-use, accessModes: [ReadWriteOnce], ` +
		`capacity: {storage: 2Gi}, hostPath: {path: ` + a.T.TempDir() + `}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: in-use}, spec: {storageClassName: e2e-in-use, accessModes: ` +
		`[ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---` + claimPod("user", "in-use", "pause", ""))
	a.Until("the user runs", func() string { return notReady(a, "user") })
	for object, finalizer := range map[string]string{"pvc/in-use": "kubernetes.io/pvc-protection",
		"pv/in-use": "kubernetes.io/pv-protection"} {
		if got := a.Field(object, "{.metadata.finalizers}"); !strings.Contains(got, finalizer) {
			a.T.Errorf("%s has the finalizers %s", object, got)
		}
	}
	a.K("delete", "pv", "in-use", "--wait=false")
	a.K("delete", "pvc", "in-use", "--wait=false")
	a.Make(claimPod("late", "in-use", "pause", ""))
	a.Until("the late pod is told", func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, "late", metav1.GetOptions{})
		a.Must(err)
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Reason == "Unschedulable" {
				return ""
			}
		}
		return kit.Describe(p)
	})
	if got := a.Field("pvc/in-use", "{.status.phase}") + a.Field("pv/in-use", "{.status.phase}"); got != "BoundBound" {
		a.T.Errorf("the claim and its volume are %s", got)
	}
	a.K("delete", "pod", "late", "user")
	for _, kind := range []string{"pvc", "pv"} {
		a.Until(kind+" is gone", func() string {
			if out, err := a.TryKubectl("", "-n", a.Name, "get", kind, "in-use"); err == nil {
				return out
			}
			return ""
		})
	}
}

// stepLocalVolumes: two pods share a directory of the node, with one group or
// with two after each other; a pod elsewhere is told why it cannot have it.
func stepLocalVolumes(a *kit.Namespace) {
	local := func(name, node string) string {
		return fmt.Sprintf(`
{apiVersion: v1, kind: PersistentVolume, metadata: {name: %[1]s}, spec: {storageClassName: e2e-%[1]s, accessModes: [ReadWriteOnce], `+
			`capacity: {storage: 2Gi}, local: {path: %[2]s},
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[3]s]}]}]}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %[1]s}, spec: {storageClassName: e2e-%[1]s, accessModes: [ReadWriteOnce], `+
			`resources: {requests: {storage: 1Gi}}}}
---`, name, a.T.TempDir(), node)
	}
	a.Make(local("here", a.NodeName()) + claimPod("one", "here", "put 0644 /v/f text; pause", "securityContext: {fsGroup: 1234}") + "---" +
		claimPod("two", "here", "pause", "securityContext: {fsGroup: 1234}"))
	a.Until("both run", func() string { return notReady(a, "one") + notReady(a, "two") })
	a.Until("they share", func() string {
		if got := execIn(a, "two", "look", "/v/f"); !strings.Contains(got, "-rw-rw-r-- 0 1234 text") &&
			!strings.Contains(got, "-rw-r--r-- 0 1234 text") {
			return got
		}
		return ""
	})
	a.K("delete", "pod", "one", "two")
	a.Make(claimPod("three", "here", "pause", "securityContext: {fsGroup: 4321}"))
	a.Until("a third runs", func() string { return notReady(a, "three") })
	if got := execIn(a, "three", "look", "/v/f"); !strings.Contains(got, " 0 4321 text") {
		a.T.Errorf("after the group changed: %s", got)
	}
	a.Make(local("there", "another-node") + claimPod("four", "there", "pause", "nodeName: "+a.NodeName()))
	a.Until("a volume of another node is refused", func() string {
		p, err := a.API.CoreV1().Pods(a.Name).Get(a.Ctx, "four", metav1.GetOptions{})
		a.Must(err)
		events := a.PodEvents(p)
		if wrong := kit.Unmatched("event", "FailedMount .*(no matching NodeSelectorTerms|cannot be used on this node)",
			events); len(wrong) > 0 || p.Status.Phase != v1.PodPending {
			return fmt.Sprint(p.Status.Phase, wrong)
		}
		return ""
	})
}
