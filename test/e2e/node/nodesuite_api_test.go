package node

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var podAPITests = []kit.Subtest{
	{Name: "refused by the API", Run: testRefusedByAPI},
	{Name: "websockets", Run: testWebsockets},
	{Name: "ephemeral containers", Run: testEphemeralContainers},
	{Name: "service variables", Run: testServiceVariables},
	{Name: "collections and status", Run: testCollections},
	{Name: "runtime classes", Run: testRuntimeClasses},
	{Name: "secrets and configmaps", Run: testPayloadAPI},
}

var nodeAPITests = []kit.Subtest{
	{Name: "who may ask the agent", Run: testAgentAuthorization},
	{Name: "numbers of the agent", Run: testAgentNumbers},
	{Name: "events", Run: testEventsOfAPod},
}

// testRefusedByAPI: pods that the API must not take, and the words it says.
func testRefusedByAPI(a *kit.Namespace) {
	const pod = `{metadata: {name: x}, spec: {%s containers: [{name: c, image: i%s}]}}`
	for _, c := range []struct{ spec, container, want string }{
		{`setHostnameAsFQDN: true, hostnameOverride: h,`, "", "hostnameOverride"},
		{`hostNetwork: true, hostnameOverride: h,`, "", "hostnameOverride"},
		{`hostnameOverride: Not-RFC1123,`, "", "hostnameOverride"},
		{`securityContext: {sysctls: [{name: foo-, value: bar}, {name: kernel.shmmax, value: "1"}, {name: safe-and-unsafe, value: "1"}, ` +
			`{name: bar.., value: "42"}]},`, "", `Invalid value: "foo-"`},
		{`securityContext: {sysctls: [{name: bar.., value: "42"}]},`, "", `Invalid value: "bar.."`},
		{`volumes: [{name: s, secret: {secretName: s}}],`, `, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: s, path: f, key: A}}}]`,
			"fileKeyRef"},
		{``, `, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: nope, path: f, key: A}}}]`, "fileKeyRef"},
		{`volumes: [{name: w, emptyDir: {}}],`, `, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: w, path: ../f, key: A}}}]`,
			"fileKeyRef"},
		{`volumes: [{name: w, emptyDir: {}}],`, `, volumeMounts: [{name: w, mountPath: /w, subPath: ../up}]`, "subPath"},
		{`runtimeClassName: nonexistent,`, "", `RuntimeClass "nonexistent" not found`},
	} {
		_, err := tryCreate(a, fmt.Sprintf(pod, c.spec, c.container))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			a.T.Errorf("%s%s: %v, want %q", c.spec, c.container, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "safe-and-unsafe") || strings.Contains(err.Error(), "kernel.shmmax")) {
			a.T.Errorf("good names are refused too: %v", err)
		}
		if err == nil {
			a.K("delete", "pod", "x", "--grace-period=0", "--force")
		}
	}
}

// dialWebsocket opens a websocket of a pod's subresource.
func dialWebsocket(a *kit.Namespace, pod, sub, query string, protocols ...string) *websocket.Conn {
	a.T.Helper()
	cfg := restConfig(a)
	tlsConfig, err := rest.TLSConfigFor(cfg)
	a.Must(err)
	d := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: protocols, HandshakeTimeout: kit.Timeout}
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/%s?%s", strings.Replace(cfg.Host, "https:", "wss:", 1), a.Name, pod, sub, query)
	ws, resp, err := d.Dial(url, nil)
	if err != nil {
		var body []byte
		if resp != nil {
			body, _ = io.ReadAll(resp.Body)
		}
		a.T.Fatalf("%s: %v %s", url, err, body)
	}
	a.T.Cleanup(func() { _ = ws.Close() })
	return ws
}

func restConfig(a *kit.Namespace) *rest.Config {
	a.T.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(a.Dir, "admin.kubeconfig"))
	a.Must(err)
	return cfg
}

// messages reads a websocket to its end.
func messages(a *kit.Namespace, ws *websocket.Conn) (out [][]byte) {
	a.T.Helper()
	a.Must(ws.SetReadDeadline(time.Now().Add(kit.Timeout)))
	for {
		_, m, err := ws.ReadMessage()
		if websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived) || err == io.EOF ||
			websocket.IsUnexpectedCloseError(err) {
			return out
		}
		if err != nil {
			a.T.Fatalf("reading the websocket: %v, after %q", err, out)
		}
		out = append(out, m)
	}
}

// testWebsockets: exec and logs in each of the protocols that clients speak.
func testWebsockets(a *kit.Namespace) {
	create(a, `{metadata: {name: main}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: berth.dev/toolbox:1, `+
		`command: [sh, -c, echo container is alive; pause]}]}}`)
	podRuns(a, "main")
	const query = "stdout=1&stderr=1&container=main&command=echo&command=remote+execution+test"
	for _, protocol := range []string{"channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io", "base64.channel.k8s.io",
		"v4.base64.channel.k8s.io"} {
		ws := dialWebsocket(a, "main", "exec", strings.Replace(query, "command=echo", "command=sh&command=-c&command=echo+$0", 1), protocol)
		if got := ws.Subprotocol(); got != protocol {
			a.T.Errorf("asked for %s, got %s", protocol, got)
		}
		var stdout bytes.Buffer
		for _, m := range messages(a, ws) {
			if len(m) == 0 {
				continue
			}
			text := m[1:]
			if strings.Contains(protocol, "base64") {
				decoded, err := base64.StdEncoding.DecodeString(string(text))
				a.Must(err)
				text = decoded
				m[0] -= '0'
			}
			switch {
			case m[0] == 1:
				stdout.Write(text)
			case m[0] == 3 && strings.Contains(string(text), "Success"), len(text) == 0:
			default:
				a.T.Errorf("%s: channel %d says %q", protocol, m[0], text)
			}
		}
		if got := strings.TrimSpace(stdout.String()); got != "remote execution test" {
			a.T.Errorf("%s: %q", protocol, got)
		}
	}
	for _, protocol := range []string{"binary.k8s.io", "base64.binary.k8s.io"} {
		var log bytes.Buffer
		for _, m := range messages(a, dialWebsocket(a, "main", "log", "container=main", protocol)) {
			if strings.HasPrefix(protocol, "base64") {
				decoded, err := base64.StdEncoding.DecodeString(string(m))
				a.Must(err)
				m = decoded
			}
			log.Write(m)
		}
		if log.String() != "container is alive\n" {
			a.T.Errorf("%s: %q", protocol, log.String())
		}
	}
}

// testEphemeralContainers: two debuggers come into a pod one after the other;
// what they do can be read, and the subresource tells of both.
func testEphemeralContainers(a *kit.Namespace) {
	create(a, `{metadata: {name: target}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: berth.dev/toolbox:1, `+
		`command: [pause]}]}}`)
	p := podRuns(a, "target")
	for i, name := range []string{"debugger", "debugger2"} {
		e := v1.EphemeralContainer{}
		e.Name, e.Image, e.Stdin, e.TTY = name, "berth.dev/toolbox:1", true, true
		e.Command = []string{"sh", "-c", "echo polo; pause"}
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, e)
		_, err := a.API.CoreV1().Pods(a.Name).UpdateEphemeralContainers(a.Ctx, "target", p, metav1.UpdateOptions{})
		a.Must(err)
		p = podUntil(a, "target", "has "+name, func(p *v1.Pod) string {
			if s := kit.StateOf(kit.ContainerStatus(p, name)); s != "running" || p.Status.ObservedGeneration != p.Generation {
				return s
			}
			return ""
		})
		if p.Generation != int64(i+2) {
			a.T.Errorf("with %s the generation is %d", name, p.Generation)
		}
	}
	if got := a.K("exec", "target", "-c", "debugger", "--", "hostname"); strings.TrimSpace(got) != "target" {
		a.T.Errorf("exec in the debugger says %q", got)
	}
	a.Until("its log comes", func() string {
		if got := a.K("logs", "target", "-c", "debugger"); !strings.Contains(got, "polo") {
			return got
		}
		return ""
	})
	if got := strings.Fields(a.K("get", "pod", "target", "--subresource=ephemeralcontainers", "-o",
		"jsonpath={.spec.ephemeralContainers[*].name}")); len(got) != 2 {
		a.T.Errorf("the subresource has %q", got)
	}
}

func testServiceVariables(a *kit.Namespace) {
	a.Make(`{apiVersion: v1, kind: Service, metadata: {name: fooservice}, spec: {ports: [{port: 8765, targetPort: 8080}], selector: ` +
		`{app: none}}}`)
	address := a.Field("service/fooservice", "{.spec.clusterIP}")
	a.Until("a new pod has the variables", func() string {
		create(a, `{metadata: {name: client}, spec: {restartPolicy: Never, containers: [{name: c, image: berth.dev/toolbox:1, command: `+
			`[env]}]}}`)
		podUntil(a, "client", "ended", func(p *v1.Pod) string { return strings.TrimPrefix(string(p.Status.Phase), "Succeeded") })
		log := a.K("logs", "client")
		a.K("delete", "pod", "client")
		var wrong []string
		for name, value := range map[string]string{
			"SERVICE_HOST": address, "SERVICE_PORT": "8765", "PORT": "tcp://" + address + ":8765", "PORT_8765_TCP_PORT": "8765",
			"PORT_8765_TCP_PROTO": "tcp",
			"PORT_8765_TCP":       "tcp://" + address + ":8765", "PORT_8765_TCP_ADDR": address,
		} {
			if line := "FOOSERVICE_" + name + "=" + value + "\n"; !strings.Contains(log, line) {
				wrong = append(wrong, line)
			}
		}
		return strings.Join(wrong, ", ")
	})
}

// testCollections: several pods go by label; the status of a pod can be written
// by others, its address and class are there.
func testCollections(a *kit.Namespace) {
	for i := range 3 {
		create(a, fmt.Sprintf(`{metadata: {name: p%d, labels: {type: Testing}}, spec: {terminationGracePeriodSeconds: 1, containers: `+
			`[{name: c, image: berth.dev/pause:1,
			resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 10m, memory: 16Mi}}}]}}`, i))
	}
	for _, p := range a.Ready("type=Testing", 3) {
		if p.Status.QOSClass != v1.PodQOSGuaranteed || p.Status.HostIP == "" || len(p.Status.PodIPs) == 0 {
			a.T.Errorf("%s: class %s, host %q, addresses %v", p.Name, p.Status.QOSClass, p.Status.HostIP, p.Status.PodIPs)
		}
	}
	a.K("patch", "pod", "p0", "--subresource=status", "-p", `{"status":{"message":"Patched by e2e test","reason":"E2E"}}`)
	p := getPod(a, "p0")
	if p.Status.Message != "Patched by e2e test" || p.Status.Reason != "E2E" || p.Status.Phase != v1.PodRunning {
		a.T.Errorf("the patched status is %s %q %q", p.Status.Phase, p.Status.Reason, p.Status.Message)
	}
	p = getPod(a, "p1")
	for i, c := range p.Status.Conditions {
		if c.Type == v1.PodReady || c.Type == v1.ContainersReady {
			p.Status.Conditions[i].Status = v1.ConditionFalse
		}
	}
	got, err := a.API.CoreV1().Pods(a.Name).UpdateStatus(a.Ctx, p, metav1.UpdateOptions{})
	a.Must(err)
	if kit.PodReady(got) {
		a.T.Error("the updated status was not kept")
	}
	a.Must(a.API.CoreV1().Pods(a.Name).DeleteCollection(a.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "type=Testing"}))
	a.Until("all are gone", func() string {
		if n := len(a.Pods(a.Name, "type=Testing")); n > 0 {
			return fmt.Sprint(n, " left")
		}
		return ""
	})
}

// testRuntimeClasses: a class gives a pod its overhead and where it may run; a
// pod that contradicts it, or names one that is gone, is refused.
func testRuntimeClasses(a *kit.Namespace) {
	a.Make(`
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: plain-e2e}, handler: runc}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: heavy-e2e}, handler: runc, overhead: {podFixed: {cpu: 10m, memory: 1Mi}}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: placed-e2e}, handler: runc, scheduling: {nodeSelector: {foo: bar}, ` +
		`tolerations: [{key: foo, operator: Equal, value: bar, effect: NoSchedule}]}}
`)
	defer a.K("delete", "runtimeclass", "heavy-e2e", "placed-e2e")
	const pod = `{metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, runtimeClassName: %s, %s containers: [{name: c, image: ` +
		`berth.dev/pause:1}]}}`
	if p := create(a, fmt.Sprintf(pod, "plain", "plain-e2e", "")); len(p.Spec.Overhead) > 0 {
		a.T.Errorf("overhead %v", p.Spec.Overhead)
	}
	podRuns(a, "plain")
	if p := create(a, fmt.Sprintf(pod, "heavy", "heavy-e2e", "")); p.Spec.Overhead.Cpu().String() != "10m" ||
		p.Spec.Overhead.Memory().String() != "1Mi" {
		a.T.Errorf("overhead %v", p.Spec.Overhead)
	}
	podRuns(a, "heavy")
	if p := create(a, fmt.Sprintf(pod, "placed", "placed-e2e", "nodeSelector: {fizz: buzz},")); p.Spec.NodeSelector["foo"] != "bar" ||
		p.Spec.NodeSelector["fizz"] != "buzz" || !slices.ContainsFunc(p.Spec.Tolerations,
		func(t v1.Toleration) bool { return t.Key == "foo" && t.Value == "bar" }) {
		a.T.Errorf("selector %v, tolerations %v", p.Spec.NodeSelector, p.Spec.Tolerations)
	}
	if _, err := tryCreate(a, fmt.Sprintf(pod, "torn", "placed-e2e", "nodeSelector: {foo: conflict},")); !apierrors.IsForbidden(err) {
		a.T.Errorf("a selector that contradicts the class: %v", err)
	}
	a.K("delete", "runtimeclass", "plain-e2e")
	a.Until("a class that is gone is refused", func() string {
		_, err := tryCreate(a, fmt.Sprintf(pod, "late", "plain-e2e", ""))
		if err == nil {
			a.K("delete", "pod", "late", "--grace-period=0", "--force")
		}
		if !apierrors.IsForbidden(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// testPayloadAPI: empty and odd keys, and patches, of secrets and configMaps.
func testPayloadAPI(a *kit.Namespace) {
	for _, kind := range []string{"Secret", "ConfigMap"} {
		for _, key := range []string{"", "..", "a/b"} {
			if out, err := a.TryKubectl(fmt.Sprintf(`{apiVersion: v1, kind: %s, metadata: {name: odd}, data: {%q: dmFsdWU=}}`, kind, key),
				"create", "-n", a.Name, "-f", "-"); err == nil {
				a.T.Errorf("%s with the key %q: %s", kind, key, out)
			}
		}
		a.Lifecycle("/api/v1/namespaces/"+a.Name+"/"+strings.ToLower(kind)+"s", fmt.Sprintf(`{"kind":%q,"data":{"key":"dmFsdWU="}}`, kind))
	}
}

// testAgentAuthorization: the agent lets in who may get nodes/proxy or the fine
// grained resource of a path, and nobody else.
func testAgentAuthorization(a *kit.Namespace) {
	node := a.Node()
	var host string
	for _, addr := range node.Status.Addresses {
		if addr.Type == v1.NodeInternalIP {
			host = addr.Address
		}
	}
	base := fmt.Sprintf("https://%s:%d", host, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for _, sub := range []string{"healthz", "proxy", "configz", "none"} {
		name := "may-" + sub
		a.K("create", "serviceaccount", name)
		a.Make(fmt.Sprintf(`
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: e2e-%[1]s}, rules: [{apiGroups: [""], verbs: [get], `+
			`resources: [nodes/%[2]s]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: e2e-%[1]s}, roleRef: {apiGroup: `+
			`rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-%[1]s}, subjects: [{kind: ServiceAccount, namespace: %[3]s, name: `+
			`%[1]s}]}
`, name, sub, a.Name))
		token, err := a.API.CoreV1().ServiceAccounts(a.Name).CreateToken(a.Ctx, name, &authentication.TokenRequest{},
			metav1.CreateOptions{})
		a.Must(err)
		for path, may := range map[string]string{"/healthz": "healthz proxy", "/configz": "configz proxy", "/pods": "proxy"} {
			want := http.StatusForbidden
			if strings.Contains(" "+may+" ", " "+sub+" ") {
				want = http.StatusOK
			}
			a.Until(fmt.Sprintf("%s asks %s and is told %d", name, path, want), func() string {
				req, err := http.NewRequestWithContext(a.Ctx, http.MethodGet, base+path, nil)
				a.Must(err)
				req.Header.Set("Authorization", "Bearer "+token.Status.Token)
				resp, err := client.Do(req)
				if err != nil {
					return err.Error()
				}
				_ = resp.Body.Close()
				if resp.StatusCode != want {
					return resp.Status
				}
				return ""
			})
		}
		a.K("delete", "clusterrole,clusterrolebinding", "e2e-"+name)
	}
}

// testAgentNumbers: containers that end are counted by their exit code; the
// agent's pods can be read through the API server.
func testAgentNumbers(a *kit.Namespace) {
	create(a, `{metadata: {name: crash}, spec: {restartPolicy: Never, containers: [{name: c, image: berth.dev/toolbox:1, command: [sh, -c,`+
		` exit 139]}]}}`)
	path := "/api/v1/nodes/" + a.NodeName() + "/proxy/"
	a.Until("the end is counted", func() string {
		got, err := a.API.CoreV1().RESTClient().Get().AbsPath(path + "metrics").DoRaw(a.Ctx)
		a.Must(err)
		for l := range strings.Lines(string(got)) {
			if strings.HasPrefix(l, "kubelet_terminated_containers_total{") && strings.Contains(l, `container_type="container"`) &&
				strings.Contains(l, `exit_code="139"`) {
				return ""
			}
		}
		return "no such line"
	})
	got, err := a.API.CoreV1().RESTClient().Get().AbsPath(path + "pods").DoRaw(a.Ctx)
	a.Must(err)
	if !strings.Contains(string(got), `"name":"crash"`) {
		a.T.Error("the agent does not list the pod")
	}
}

// testEventsOfAPod finds the events of scheduler and agent by their source.
func testEventsOfAPod(a *kit.Namespace) {
	p := create(a, `{metadata: {name: watched}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: `+
		`berth.dev/pause:1}]}}`)
	podRuns(a, "watched")
	for source, reason := range map[string]string{"default-scheduler": "Scheduled", "kubelet": "Started"} {
		a.Until("an event of "+source, func() string {
			list, err := a.API.CoreV1().Events(a.Name).List(a.Ctx,
				metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.uid=" + string(p.UID) +
					",involvedObject.namespace=" + a.Name + ",source=" + source})
			a.Must(err)
			for i := range list.Items {
				if list.Items[i].Reason == reason {
					return ""
				}
			}
			return fmt.Sprint(len(list.Items), " others")
		})
	}
}
