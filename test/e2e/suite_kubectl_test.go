package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"io"
)

var kubectlTests = []appTest{
	{"kubectl asks the server", asksTheServer},
	{"kubectl describes", describes},
	{"kubectl changes a pod", changesAPod},
	{"kubectl scales and exposes", scalesAndExposes},
	{"kubectl filters logs", filtersLogs},
	{"kubectl proxies", kubectlProxies},
	{"kubectl makes objects", makesObjects},
	{"kubectl and definitions", kubectlAndDefinitions},
}

// lacking complains of what a text lacks.
func (a *apps) lacking(what, text string, want ...string) {
	a.t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			a.t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

func (a *apps) fails(want string, stdin string, args ...string) {
	a.t.Helper()
	out, err := a.tryKubectl(stdin, append([]string{"-n", a.ns}, args...)...)
	if err == nil || !strings.Contains(out, want) {
		a.t.Errorf("kubectl %v: %v, want %q in: %s", args, err, want, out)
	}
}

func asksTheServer(a *apps) {
	a.lacking("api-versions", "\n"+a.k("api-versions"), "\nv1\n", "\napps/v1\n", "\nautoscaling/v2\n")
	a.lacking("cluster-info", a.k("cluster-info"), "Kubernetes control plane", "is running at")
	a.lacking("version", a.k("version"), "Client Version: ", "Server Version: ")
	if out := a.k("version", "-o", "json"); !regexp.MustCompile(`"major": "\d+"[^}]*"minor": "\d+"`).MatchString(
		out[strings.Index(out, "serverVersion"):]) {
		a.t.Errorf("the server's version is %s", out)
	}
	a.lacking("api-resources", a.k("api-resources", "--categories=all", "-o", "name"), "deployments.apps", "cronjobs.batch", "pods")
	a.lacking("auth can-i", a.k("auth", "can-i", "create", "pods"), "yes")
	a.lacking("auth whoami", a.k("auth", "whoami"), "Username", "berth:cluster-admins")
	if out, _ := a.tryKubectl("", "-n", a.ns, "auth", "can-i", "list", "secrets", "--as", "system:serviceaccount:"+a.ns+
		":default"); strings.TrimSpace(out) != "no" {
		a.t.Errorf("a service account may list secrets: %s", out)
	}
}

const agnhost = `
apiVersion: v1
kind: ReplicationController
metadata: {name: primary, labels: {app: agnhost, role: primary}}
spec:
  replicas: 1
  selector: {app: agnhost, role: primary}
  template:
    metadata: {labels: {app: agnhost, role: primary}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: primary, image: "berth.dev/toolbox:1", args: [serve, "6379"], ports: [{name: server, containerPort: 6379}]}]
---
apiVersion: v1
kind: Service
metadata: {name: primary, labels: {app: agnhost, role: primary}}
spec: {selector: {app: agnhost, role: primary}, ports: [{port: 6379, targetPort: server}]}
`

func describes(a *apps) {
	a.make(agnhost)
	pod := a.ready("app=agnhost", 1)[0].Name
	a.lacking("describe pod", a.k("describe", "pod", pod), "Name:", "Namespace:", "Labels:", "app=agnhost", "role=primary", "Annotations:",
		"Status:", "Running", "IP:", "Controlled By:", "ReplicationController/primary",
		"Image:", "State:", "QoS Class:", "BestEffort", "Successfully assigned")
	a.lacking("describe rc", a.k("describe", "rc", "primary"), "Name:", "Namespace:", "Selector:", "app=agnhost,role=primary", "Labels:",
		"Annotations:", "Replicas:", "1 current", "1 desired", "Pods Status:", "1 Running", "0 Waiting", "0 Succeeded", "0 Failed",
		"Pod Template:", "Image:", "Events:", "Created pod")
	a.lacking("describe service", a.k("describe", "service", "primary"), "Name:", "Namespace:", "Labels:", "Annotations:", "Selector:",
		"Type:", "ClusterIP", "IP:", "Port:", "<unset>", "6379/TCP", "Endpoints:", "Session Affinity:")
	a.lacking("describe node", a.k("describe", "node", a.nodeName()), "Name:", "Labels:", "Annotations:", "CreationTimestamp:",
		"Conditions:", "Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message",
		"Addresses:", "Capacity:", "Allocatable:", "Kernel Version:", "OS Image:", "Container Runtime Version:", "Kubelet Version:",
		"Allocated resources:")
	a.lacking("describe namespace", a.k("describe", "namespace", a.ns), "Name:", a.ns, "Labels:", "Annotations:", "Status:", "Active")
	a.lacking("events", a.k("events", "--for", "pod/"+pod), "Scheduled", "Started")
	a.make(`{apiVersion: batch/v1, kind: CronJob, metadata: {name: cron}, spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {template: ` +
		`{spec: {restartPolicy: OnFailure, containers: [{name: c, image: "berth.dev/toolbox:1"}]}}}}}}`)
	a.lacking("describe cronjob", a.k("describe", "cronjob", "cron"), "Schedule:", "Concurrency Policy:", "Suspend:",
		"Successful Job History Limit:", "Failed Job History Limit:", "Starting Deadline Seconds:", "Selector:", "Labels:")
	a.k("label", "pods", pod, "testing-label=testing-label-value")
	a.lacking("a label column", a.k("get", "pod", pod, "-L", "testing-label"), "testing-label-value")
	a.k("label", "pods", pod, "testing-label-")
	a.k("patch", "pod", pod, "-p", `{"metadata":{"annotations":{"x":"y"}}}`)
	if got := a.field("pod/"+pod, "{.metadata.annotations.x}{.metadata.labels.testing-label}"); got != "y" {
		a.t.Errorf("after labelling and annotating: %q", got)
	}
}

func changesAPod(a *apps) {
	a.k("run", "runs", "--image=berth.dev/toolbox:1", "--restart=Never", "--labels=app=runs", "--", "sleep", "infinity")
	a.ready("app=runs", 1)
	image := func() string { return a.field("pod/runs", "{.spec.containers[0].image}") }
	a.k("patch", "pod", "runs", "--dry-run=server", "-p", `{"spec":{"containers":[{"name":"runs","image":"example.com/other:1"}]}}`)
	if got := image(); got != "berth.dev/toolbox:1" {
		a.t.Errorf("a dry run changed the image to %s", got)
	}
	manifest := strings.ReplaceAll(a.k("get", "pod", "runs", "-o", "json"), `"image": "berth.dev/toolbox:1"`,
		`"image": "example.com/other:1"`)
	if out, err := a.tryKubectl(manifest, "-n", a.ns, "replace", "-f", "-"); err != nil {
		a.t.Errorf("replace: %s", out)
	}
	if got := image(); got != "example.com/other:1" {
		a.t.Errorf("replace left the image %s", got)
	}
	out, err := a.tryKubectl(manifest, "-n", a.ns, "replace", "--force", "-f", "-")
	if err != nil {
		a.t.Errorf("replace --force: %v %s", err, out)
	}
	d := `{apiVersion: apps/v1, kind: Deployment, metadata: {name: httpd}, spec: {replicas: 0, selector: {matchLabels: {app: httpd}}, ` +
		`template: {metadata: {labels: {app: httpd}}, spec: {containers: [{name: httpd, image: "example.com/%s:1"}]}}}}`
	a.make(fmt.Sprintf(d, "httpd"))
	if out, err := a.tryKubectl(fmt.Sprintf(d, "busybox"), "-n", a.ns, "diff", "-f", "-"); err == nil ||
		!regexp.MustCompile(`(?s)-.*image: example.com/httpd:1\n\+.*image: example.com/busybox:1`).MatchString(out) {
		a.t.Errorf("diff: %v\n%s", err, out)
	}
	a.kubectl("taint", "node", a.nodeName(), "suite=a:PreferNoSchedule")
	a.lacking("the taint", a.k("describe", "node", a.nodeName()), "suite=a:PreferNoSchedule")
	a.kubectl("taint", "node", a.nodeName(), "suite:PreferNoSchedule-")
}

func scalesAndExposes(a *apps) {
	a.make(agnhost)
	a.ready("app=agnhost", 1)
	for _, n := range []int{2, 1} {
		a.k("scale", "rc", "primary", fmt.Sprint("--replicas=", n), "--timeout=1m")
		a.ready("app=agnhost", n)
	}
	a.k("expose", "rc", "primary", "--name=rm2", "--port=1234", "--target-port=6379")
	a.k("expose", "service", "rm2", "--name=rm3", "--port=2345", "--target-port=6379")
	for name, port := range map[string]string{"rm2": "1234", "rm3": "2345"} {
		if got := a.field("service/"+name, "{.spec.ports[0].port} {.spec.ports[0].targetPort}"); got != port+" 6379" {
			a.t.Errorf("service %s: %s", name, got)
		}
		a.until("endpoints of "+name, func() string {
			out := a.k("get", "endpointslices", "-l", "kubernetes.io/service-name="+name, "-o",
				"jsonpath={.items[*].ports[0].port} {.items[*].endpoints[*].targetRef.name}")
			if strings.HasPrefix(out, "6379 primary-") {
				return ""
			}
			return out
		})
	}
	a.make(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 0, selector: {matchLabels: {app: d}}, ` +
		`template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: "berth.dev/toolbox:1"}]}}}}`)
	a.k("autoscale", "deployment", "d", "--min=1", "--max=3", "--cpu=50%")
	a.lacking("the autoscaler", a.k("get", "hpa", "d"), "Deployment/d", "3")
	a.k("delete", "rc,service", "-l", "app=agnhost", "--wait")
	a.ready("app=agnhost", 0)
}

func filtersLogs(a *apps) {
	a.make(`{apiVersion: v1, kind: Pod, metadata: {name: logs, labels: {app: logs}}, spec: {restartPolicy: Never, containers: [{name: c, ` +
		`image: "berth.dev/toolbox:1", args: [sh, -c, "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done"]}]}}`)
	a.untilField("pod/logs", "{.status.phase}", "Succeeded")
	if got := a.k("logs", "logs", "c", "--tail=1"); got != "line 10\n" {
		a.t.Errorf("the last line is %q", got)
	}
	if got := a.k("logs", "logs", "--limit-bytes=1"); got != "l" {
		a.t.Errorf("one byte is %q", got)
	}
	stamp, line, _ := strings.Cut(a.k("logs", "logs", "--tail=1", "--timestamps"), " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || line != "line 10\n" {
		a.t.Errorf("a line with its time: %q %q %v", stamp, line, err)
	}
	if got := strings.Count(a.k("logs", "logs", "--since=24h"), "\n"); got != 10 {
		a.t.Errorf("%d lines of the last day", got)
	}
	a.until("nothing is newer than a second", func() string { return a.k("logs", "logs", "--since=1s") })
}

// kubectlProxies: kubectl proxy on a port of the system's choice and on a
// socket.
func kubectlProxies(a *apps) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket := filepath.Join(a.t.TempDir(), "s")
	for _, args := range [][]string{{"proxy", "--port=0", "--disable-filter"}, {"proxy", "--unix-socket=" + socket}} {
		cmd := a.kubectlCommand(ctx, args...)
		out, err := cmd.StdoutPipe()
		a.must(err)
		a.must(cmd.Start())
		sc := bufio.NewScanner(out)
		if !sc.Scan() || !strings.HasPrefix(sc.Text(), "Starting to serve on ") {
			a.t.Fatalf("%v says %q", args, sc.Text())
		}
		address := strings.TrimPrefix(sc.Text(), "Starting to serve on ")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
			_ string) (net.Conn, error) {
			network := "tcp"
			if strings.HasPrefix(address, "/") {
				network = "unix"
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}}}
		resp, err := client.Get("http://localhost/api/")
		a.must(err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		a.lacking(fmt.Sprint(args), string(body), `"APIVersions"`, `"v1"`)
		a.must(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}
}

func makesObjects(a *apps) {
	a.k("create", "quota", "million", "--hard=pods=1000000,services=1000000")
	a.untilField("quota/million", "{.status.hard.pods}", "1M")
	a.k("create", "quota", "scopes", "--hard=pods=1000000", "--scopes=BestEffort,NotTerminating")
	a.fails("nsupported", "", "create", "quota", "bad", "--hard=pods=1000000", "--scopes=Nonsense")
	a.k("create", "poddisruptionbudget", "pdb", "--selector=app=x", "--min-available=1")
	a.kubectl("create", "priorityclass", "suite-made", "--value=1000", "--description=words")
	a.kubectl("delete", "priorityclass", "suite-made")
	a.k("create", "role", "r", "--verb=get", "--resource=pods")
	a.k("create", "rolebinding", "rb", "--role=r", "--serviceaccount="+a.ns+":default")
	a.k("create", "ingress", "i", "--rule=example.com/*=svc:80", "--class=none")
	a.k("create", "secret", "generic", "s", "--from-literal=a=b")
	a.k("create", "job", "j", "--image=berth.dev/toolbox:1", "--", "sh", "-c", "true")
	a.k("wait", "--for=condition=complete", "job/j", "--timeout=60s")
	if out := a.k("create", "token", "default", "--duration=10m"); strings.Count(out, ".") != 2 {
		a.t.Errorf("a token: %s", out)
	}
	m := func(v string) string {
		return `{apiVersion: v1, kind: ConfigMap, metadata: {name: applied}, data: {a: "` + v + `"}}`
	}
	if out, err := a.tryKubectl(m("1"), "-n", a.ns, "apply", "--server-side", "--field-manager=one", "-f", "-"); err != nil {
		a.t.Errorf("apply --server-side: %s", out)
	}
	a.fails("conflict", m("2"), "apply", "--server-side", "--field-manager=two", "-f", "-")
	if out, err := a.tryKubectl(m("2"), "-n", a.ns, "apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f",
		"-"); err != nil {
		a.t.Errorf("apply --force-conflicts: %s", out)
	}
	if got := a.field("configmap/applied", "{.data.a}"); got != "2" {
		a.t.Errorf("applied: %q", got)
	}
	a.fails(`unknown field "spec.unknown"`, `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {unknown: 1, ports: [{port: 1}]}}`,
		"create", "-f", "-")
}

// kubectlAndDefinitions: kubectl checks custom objects against the published
// schema and explains it.
func kubectlAndDefinitions(a *apps) {
	a.make(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.suite.example.com}
spec:
  group: suite.example.com
  scope: Namespaced
  names: {plural: foos, singular: foo, kind: Foo}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        description: Foo CRD for Testing
        type: object
        properties:
          spec: {type: object, description: Specification of Foo, properties: {bars: {type: array, description: List of Bars and their ` +
		`specs., items: {type: object, required: [name], properties: {name: {type: string, description: Name of Bar.}, age: {type: ` +
		`string}}}}}}
          free: {type: object, x-kubernetes-preserve-unknown-fields: true, description: Anything.}
`)
	a.t.Cleanup(func() { _, _ = a.tryKubectl("", "delete", "crd", "foos.suite.example.com") })
	foo := func(fields string) string {
		return `{apiVersion: suite.example.com/v1, kind: Foo, metadata: {name: test}, ` + fields + `}`
	}
	a.until("kubectl knows the schema", func() string {
		out, err := a.tryKubectl("", "explain", "foos.spec.bars")
		if err != nil || !strings.Contains(out, "List of Bars and their specs.") {
			return out
		}
		return ""
	})
	a.lacking("explain", a.k("explain", "foos"), "KIND:", "Foo", "VERSION:", "v1", "DESCRIPTION:", "Foo CRD for Testing", "FIELDS:", "spec")
	a.lacking("explain a field", a.k("explain", "foos.spec.bars"), "List of Bars and their specs.", "name", "required")
	a.fails("", "", "explain", "foos.spec.nothing")
	a.fails(`unknown field "spec.unknown"`, foo(`spec: {unknown: 1}`), "create", "-f", "-")
	a.fails("spec.bars[0].name", foo(`spec: {bars: [{age: "10"}]}`), "create", "-f", "-")
	for _, verb := range []string{"create", "apply"} {
		if out, err := a.tryKubectl(foo(`spec: {bars: [{name: b}]}, free: {any: thing}`), "-n", a.ns, verb, "-f", "-"); err != nil {
			a.t.Errorf("%s: %s", verb, out)
		}
	}
	if got := a.field("foo/test", "{.free.any}"); got != "thing" {
		a.t.Errorf("what was preserved: %q", got)
	}
	a.k("delete", "foos", "test")
}
