package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var kubectlTests = []kit.Subtest{
	{Name: "kubectl asks the server", Run: asksTheServer},
	{Name: "kubectl describes", Run: describes},
	{Name: "kubectl changes a pod", Run: changesAPod},
	{Name: "kubectl scales and exposes", Run: scalesAndExposes},
	{Name: "kubectl filters logs", Run: filtersLogs},
	{Name: "kubectl proxies", Run: kubectlProxies},
	{Name: "kubectl makes objects", Run: makesObjects},
	{Name: "kubectl and definitions", Run: kubectlAndDefinitions},
}

// lacking complains of what a text lacks.
func lacking(a *kit.Namespace, what, text string, want ...string) {
	a.T.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			a.T.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

func fails(a *kit.Namespace, want string, stdin string, args ...string) {
	a.T.Helper()
	out, err := a.TryKubectl(stdin, append([]string{"-n", a.Name}, args...)...)
	if err == nil || !strings.Contains(out, want) {
		a.T.Errorf("kubectl %v: %v, want %q in: %s", args, err, want, out)
	}
}

func asksTheServer(a *kit.Namespace) {
	lacking(a, "api-versions", "\n"+a.K("api-versions"), "\nv1\n", "\napps/v1\n", "\nautoscaling/v2\n")
	lacking(a, "cluster-info", a.K("cluster-info"), "Kubernetes control plane", "is running at")
	lacking(a, "version", a.K("version"), "Client Version: ", "Server Version: ")
	if out := a.K("version", "-o", "json"); !regexp.MustCompile(`"major": "\d+"[^}]*"minor": "\d+"`).MatchString(
		out[strings.Index(out, "serverVersion"):]) {
		a.T.Errorf("the server's version is %s", out)
	}
	lacking(a, "api-resources", a.K("api-resources", "--categories=all", "-o", "name"), "deployments.apps", "cronjobs.batch", "pods")
	lacking(a, "auth can-i", a.K("auth", "can-i", "create", "pods"), "yes")
	lacking(a, "auth whoami", a.K("auth", "whoami"), "Username", "berth:cluster-admins")
	if out, _ := a.TryKubectl("", "-n", a.Name, "auth", "can-i", "list", "secrets", "--as", "system:serviceaccount:"+a.Name+
		":default"); strings.TrimSpace(out) != "no" {
		a.T.Errorf("a service account may list secrets: %s", out)
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

func describes(a *kit.Namespace) {
	a.Make(agnhost)
	pod := a.Ready("app=agnhost", 1)[0].Name
	lacking(a, "describe pod", a.K("describe", "pod", pod), "Name:", "Namespace:", "Labels:", "app=agnhost", "role=primary", "Annotations:",
		"Status:", "Running", "IP:", "Controlled By:", "ReplicationController/primary",
		"Image:", "State:", "QoS Class:", "BestEffort", "Successfully assigned")
	lacking(a, "describe rc", a.K("describe", "rc", "primary"), "Name:", "Namespace:", "Selector:", "app=agnhost,role=primary", "Labels:",
		"Annotations:", "Replicas:", "1 current", "1 desired", "Pods Status:", "1 Running", "0 Waiting", "0 Succeeded", "0 Failed",
		"Pod Template:", "Image:", "Events:", "Created pod")
	lacking(a, "describe service", a.K("describe", "service", "primary"), "Name:", "Namespace:", "Labels:", "Annotations:", "Selector:",
		"Type:", "ClusterIP", "IP:", "Port:", "<unset>", "6379/TCP", "Endpoints:", "Session Affinity:")
	lacking(a, "describe node", a.K("describe", "node", a.NodeName()), "Name:", "Labels:", "Annotations:", "CreationTimestamp:",
		"Conditions:", "Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message",
		"Addresses:", "Capacity:", "Allocatable:", "Kernel Version:", "OS Image:", "Container Runtime Version:", "Kubelet Version:",
		"Allocated resources:")
	lacking(a, "describe namespace", a.K("describe", "namespace", a.Name), "Name:", a.Name, "Labels:", "Annotations:", "Status:", "Active")
	lacking(a, "events", a.K("events", "--for", "pod/"+pod), "Scheduled", "Started")
	a.Make(`{apiVersion: batch/v1, kind: CronJob, metadata: {name: cron}, spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {template: ` +
		`{spec: {restartPolicy: OnFailure, containers: [{name: c, image: "berth.dev/toolbox:1"}]}}}}}}`)
	lacking(a, "describe cronjob", a.K("describe", "cronjob", "cron"), "Schedule:", "Concurrency Policy:", "Suspend:",
		"Successful Job History Limit:", "Failed Job History Limit:", "Starting Deadline Seconds:", "Selector:", "Labels:")
	a.K("label", "pods", pod, "testing-label=testing-label-value")
	lacking(a, "a label column", a.K("get", "pod", pod, "-L", "testing-label"), "testing-label-value")
	a.K("label", "pods", pod, "testing-label-")
	a.K("patch", "pod", pod, "-p", `{"metadata":{"annotations":{"x":"y"}}}`)
	if got := a.Field("pod/"+pod, "{.metadata.annotations.x}{.metadata.labels.testing-label}"); got != "y" {
		a.T.Errorf("after labelling and annotating: %q", got)
	}
}

func changesAPod(a *kit.Namespace) {
	a.K("run", "runs", "--image=berth.dev/toolbox:1", "--restart=Never", "--labels=app=runs", "--", "sleep", "infinity")
	a.Ready("app=runs", 1)
	image := func() string { return a.Field("pod/runs", "{.spec.containers[0].image}") }
	a.K("patch", "pod", "runs", "--dry-run=server", "-p", `{"spec":{"containers":[{"name":"runs","image":"example.com/other:1"}]}}`)
	if got := image(); got != "berth.dev/toolbox:1" {
		a.T.Errorf("a dry run changed the image to %s", got)
	}
	manifest := strings.ReplaceAll(a.K("get", "pod", "runs", "-o", "json"), `"image": "berth.dev/toolbox:1"`,
		`"image": "example.com/other:1"`)
	if out, err := a.TryKubectl(manifest, "-n", a.Name, "replace", "-f", "-"); err != nil {
		a.T.Errorf("replace: %s", out)
	}
	if got := image(); got != "example.com/other:1" {
		a.T.Errorf("replace left the image %s", got)
	}
	out, err := a.TryKubectl(manifest, "-n", a.Name, "replace", "--force", "-f", "-")
	if err != nil {
		a.T.Errorf("replace --force: %v %s", err, out)
	}
	d := `{apiVersion: apps/v1, kind: Deployment, metadata: {name: httpd}, spec: {replicas: 0, selector: {matchLabels: {app: httpd}}, ` +
		`template: {metadata: {labels: {app: httpd}}, spec: {containers: [{name: httpd, image: "example.com/%s:1"}]}}}}`
	a.Make(fmt.Sprintf(d, "httpd"))
	if out, err := a.TryKubectl(fmt.Sprintf(d, "busybox"), "-n", a.Name, "diff", "-f", "-"); err == nil ||
		!regexp.MustCompile(`(?s)-.*image: example.com/httpd:1\n\+.*image: example.com/busybox:1`).MatchString(out) {
		a.T.Errorf("diff: %v\n%s", err, out)
	}
	a.Kubectl("taint", "node", a.NodeName(), "suite=a:PreferNoSchedule")
	lacking(a, "the taint", a.K("describe", "node", a.NodeName()), "suite=a:PreferNoSchedule")
	a.Kubectl("taint", "node", a.NodeName(), "suite:PreferNoSchedule-")
}

func scalesAndExposes(a *kit.Namespace) {
	a.Make(agnhost)
	a.Ready("app=agnhost", 1)
	for _, n := range []int{2, 1} {
		a.K("scale", "rc", "primary", fmt.Sprint("--replicas=", n), "--timeout=1m")
		a.Ready("app=agnhost", n)
	}
	a.K("expose", "rc", "primary", "--name=rm2", "--port=1234", "--target-port=6379")
	a.K("expose", "service", "rm2", "--name=rm3", "--port=2345", "--target-port=6379")
	for name, port := range map[string]string{"rm2": "1234", "rm3": "2345"} {
		if got := a.Field("service/"+name, "{.spec.ports[0].port} {.spec.ports[0].targetPort}"); got != port+" 6379" {
			a.T.Errorf("service %s: %s", name, got)
		}
		a.Until("endpoints of "+name, func() string {
			out := a.K("get", "endpointslices", "-l", "kubernetes.io/service-name="+name, "-o",
				"jsonpath={.items[*].ports[0].port} {.items[*].endpoints[*].targetRef.name}")
			if strings.HasPrefix(out, "6379 primary-") {
				return ""
			}
			return out
		})
	}
	a.Make(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 0, selector: {matchLabels: {app: d}}, ` +
		`template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: "berth.dev/toolbox:1"}]}}}}`)
	a.K("autoscale", "deployment", "d", "--min=1", "--max=3", "--cpu=50%")
	lacking(a, "the autoscaler", a.K("get", "hpa", "d"), "Deployment/d", "3")
	a.K("delete", "rc,service", "-l", "app=agnhost", "--wait")
	a.Ready("app=agnhost", 0)
}

func filtersLogs(a *kit.Namespace) {
	a.Make(`{apiVersion: v1, kind: Pod, metadata: {name: logs, labels: {app: logs}}, spec: {restartPolicy: Never, containers: [{name: c, ` +
		`image: "berth.dev/toolbox:1", args: [sh, -c, "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done"]}]}}`)
	a.UntilField("pod/logs", "{.status.phase}", "Succeeded")
	if got := a.K("logs", "logs", "c", "--tail=1"); got != "line 10\n" {
		a.T.Errorf("the last line is %q", got)
	}
	if got := a.K("logs", "logs", "--limit-bytes=1"); got != "l" {
		a.T.Errorf("one byte is %q", got)
	}
	stamp, line, _ := strings.Cut(a.K("logs", "logs", "--tail=1", "--timestamps"), " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || line != "line 10\n" {
		a.T.Errorf("a line with its time: %q %q %v", stamp, line, err)
	}
	if got := strings.Count(a.K("logs", "logs", "--since=24h"), "\n"); got != 10 {
		a.T.Errorf("%d lines of the last day", got)
	}
	a.Until("nothing is newer than a second", func() string { return a.K("logs", "logs", "--since=1s") })
}

// kubectlProxies: kubectl proxy on a port of the system's choice and on a
// socket.
func kubectlProxies(a *kit.Namespace) {
	ctx, cancel := context.WithTimeout(context.Background(), kit.Timeout)
	defer cancel()
	socket := filepath.Join(a.T.TempDir(), "s")
	for _, args := range [][]string{{"proxy", "--port=0", "--disable-filter"}, {"proxy", "--unix-socket=" + socket}} {
		cmd := a.KubectlCommand(ctx, args...)
		out, err := cmd.StdoutPipe()
		a.Must(err)
		a.Must(cmd.Start())
		sc := bufio.NewScanner(out)
		if !sc.Scan() || !strings.HasPrefix(sc.Text(), "Starting to serve on ") {
			a.T.Fatalf("%v says %q", args, sc.Text())
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
		a.Must(err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		lacking(a, fmt.Sprint(args), string(body), `"APIVersions"`, `"v1"`)
		a.Must(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}
}

func makesObjects(a *kit.Namespace) {
	a.K("create", "quota", "million", "--hard=pods=1000000,services=1000000")
	a.UntilField("quota/million", "{.status.hard.pods}", "1M")
	a.K("create", "quota", "scopes", "--hard=pods=1000000", "--scopes=BestEffort,NotTerminating")
	fails(a, "nsupported", "", "create", "quota", "bad", "--hard=pods=1000000", "--scopes=Nonsense")
	a.K("create", "poddisruptionbudget", "pdb", "--selector=app=x", "--min-available=1")
	a.Kubectl("create", "priorityclass", "suite-made", "--value=1000", "--description=words")
	a.Kubectl("delete", "priorityclass", "suite-made")
	a.K("create", "role", "r", "--verb=get", "--resource=pods")
	a.K("create", "rolebinding", "rb", "--role=r", "--serviceaccount="+a.Name+":default")
	a.K("create", "ingress", "i", "--rule=example.com/*=svc:80", "--class=none")
	a.K("create", "secret", "generic", "s", "--from-literal=a=b")
	a.K("create", "job", "j", "--image=berth.dev/toolbox:1", "--", "sh", "-c", "true")
	a.K("wait", "--for=condition=complete", "job/j", "--timeout=60s")
	if out := a.K("create", "token", "default", "--duration=10m"); strings.Count(out, ".") != 2 {
		a.T.Errorf("a token: %s", out)
	}
	m := func(v string) string {
		return `{apiVersion: v1, kind: ConfigMap, metadata: {name: applied}, data: {a: "` + v + `"}}`
	}
	if out, err := a.TryKubectl(m("1"), "-n", a.Name, "apply", "--server-side", "--field-manager=one", "-f", "-"); err != nil {
		a.T.Errorf("apply --server-side: %s", out)
	}
	fails(a, "conflict", m("2"), "apply", "--server-side", "--field-manager=two", "-f", "-")
	if out, err := a.TryKubectl(m("2"), "-n", a.Name, "apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f",
		"-"); err != nil {
		a.T.Errorf("apply --force-conflicts: %s", out)
	}
	if got := a.Field("configmap/applied", "{.data.a}"); got != "2" {
		a.T.Errorf("applied: %q", got)
	}
	fails(a, `unknown field "spec.unknown"`, `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {unknown: 1, ports: [{port: 1}]}}`,
		"create", "-f", "-")
}

// kubectlAndDefinitions: kubectl checks custom objects against the published
// schema and explains it.
func kubectlAndDefinitions(a *kit.Namespace) {
	a.Make(`
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
	a.T.Cleanup(func() { _, _ = a.TryKubectl("", "delete", "crd", "foos.suite.example.com") })
	foo := func(fields string) string {
		return `{apiVersion: suite.example.com/v1, kind: Foo, metadata: {name: test}, ` + fields + `}`
	}
	a.Until("kubectl knows the schema", func() string {
		out, err := a.TryKubectl("", "explain", "foos.spec.bars")
		if err != nil || !strings.Contains(out, "List of Bars and their specs.") {
			return out
		}
		return ""
	})
	lacking(a, "explain", a.K("explain", "foos"), "KIND:", "Foo", "VERSION:", "v1", "DESCRIPTION:", "Foo CRD for Testing", "FIELDS:",
		"spec")
	lacking(a, "explain a field", a.K("explain", "foos.spec.bars"), "List of Bars and their specs.", "name", "required")
	fails(a, "", "", "explain", "foos.spec.nothing")
	fails(a, `unknown field "spec.unknown"`, foo(`spec: {unknown: 1}`), "create", "-f", "-")
	fails(a, "spec.bars[0].name", foo(`spec: {bars: [{age: "10"}]}`), "create", "-f", "-")
	for _, verb := range []string{"create", "apply"} {
		if out, err := a.TryKubectl(foo(`spec: {bars: [{name: b}]}, free: {any: thing}`), "-n", a.Name, verb, "-f", "-"); err != nil {
			a.T.Errorf("%s: %s", verb, out)
		}
	}
	if got := a.Field("foo/test", "{.free.any}"); got != "thing" {
		a.T.Errorf("what was preserved: %q", got)
	}
	a.K("delete", "foos", "test")
}
