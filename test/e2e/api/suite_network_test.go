package api

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var networkTests = []kit.Subtest{
	{Name: "host ports", Run: hostPorts},
	{Name: "names in pods", Run: namesInPods},
	{Name: "one port two protocols", Run: onePortTwoProtocols},
	{Name: "proxies", Run: proxies},
	{Name: "hairpin and affinity", Run: hairpinAndAffinity},
}

// web is a server on port 8080, TCP and UDP, with more of its container.
func web(name, container string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s, group: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "berth.dev/toolbox:1", args: [serve, "8080", "udp:8080"]%s}]
---
`, name, name, container)
}

// runIn runs a shell line in a pod.
func runIn(a *kit.Namespace, pod, script string) string {
	a.T.Helper()
	out, _ := a.TryKubectl("", "-n", a.Name, "exec", pod, "--", "sh", "-c", script)
	return strings.TrimSpace(out)
}

func answers(a *kit.Namespace, from, script, want string) {
	a.T.Helper()
	a.Until(fmt.Sprintf("%s says %q", script, want), func() string {
		if out := runIn(a, from, script); !strings.Contains(out, want) {
			return "it says " + out
		}
		return ""
	})
}

// hostPorts: pods share a number if the address or the protocol differs, and
// each is reached at its own.
func hostPorts(a *kit.Namespace) {
	ip := a.Kubectl("get", "node", a.NodeName(), "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	port := func(ip, protocol string) string {
		return fmt.Sprintf(`, ports: [{containerPort: 8080, hostPort: 54323, hostIP: %q, protocol: %s}]`, ip, protocol)
	}
	a.Make(web("pod1", port("127.0.0.1", "TCP")) + web("pod2", port(ip, "TCP")) + web("pod3", port(ip, "UDP")))
	podNamed(a, "host", "hostNetwork: true", "")
	a.Ready("group=web", 3)
	a.Ready("app=host", 1)
	answers(a, "host", "wget -T 2 -O - http://127.0.0.1:54323/hostname", "pod1")
	answers(a, "host", fmt.Sprintf("wget -T 2 -O - http://%s:54323/hostname", ip), "pod2")
	answers(a, "host", fmt.Sprintf("echo hello | nc -u %s 54323", ip), "pod3 hello")
}

// namesInPods: what a pod calls itself, whom it asks, and what it is told.
func namesInPods(a *kit.Namespace) {
	a.Make(`
apiVersion: v1
kind: Service
metadata: {name: group}
spec: {clusterIP: None, selector: {app: querier}, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: regular}
spec: {selector: {app: querier}, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: foo.example.com}
`)
	podNamed(a, "querier", "hostname: querier-2\nsubdomain: group", "")
	podNamed(a, "own", "dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1], searches: [resolv.conf.local], options: [{name: ndots, "+
		"value: "+
		"\"2\"}]}", "")
	a.Ready("app=querier", 1)
	a.Ready("app=own", 1)
	full := "querier-2.group." + a.Name + ".svc.cluster.local"
	if got := runIn(a, "querier", "cat /etc/hosts; hostname"); !strings.Contains(got, full+"\tquerier-2") ||
		!strings.HasSuffix(got, "\nquerier-2") {
		a.T.Errorf("the pod knows itself as %q", got)
	}
	ip := a.Field("pod/querier", "{.status.podIP}")
	for _, name := range []string{full, "querier-2.group", "group", strings.ReplaceAll(ip, ".", "-") + "." + a.Name +
		".pod.cluster.local"} {
		answers(a, "querier", "nslookup "+name, ip)
	}
	regular := a.Field("service/regular", "{.spec.clusterIP}")
	for _, name := range []string{"regular", "regular." + a.Name, "regular." + a.Name + ".svc",
		"regular." + a.Name + ".svc.cluster.local"} {
		answers(a, "querier", "nslookup "+name, regular)
	}
	answers(a, "querier", "nslookup kubernetes.default", a.Kubectl("get", "service", "kubernetes", "-n", "default", "-o",
		"jsonpath={.spec.clusterIP}"))
	if got := runIn(a, "own", "cat /etc/resolv.conf"); !strings.Contains(got, "nameserver 1.1.1.1") ||
		!strings.Contains(got, "search resolv.conf.local") || !strings.Contains(got, "ndots:2") || strings.Contains(got, "cluster.local") {
		a.T.Errorf("a pod with its own settings has %q", got)
	}
	// A name that becomes a Service has an address from then on.
	a.K("patch", "service", "elsewhere", "--type=merge", "-p",
		`{"spec":{"type":"ClusterIP","externalName":null,"ports":[{"port":80,"name":"http","protocol":"TCP"}]}}`)
	answers(a, "querier", "nslookup elsewhere", a.Field("service/elsewhere", "{.spec.clusterIP}"))
}

// onePortTwoProtocols: a Service gives up one of its protocols and takes it
// back, and the other goes on.
func onePortTwoProtocols(a *kit.Namespace) {
	a.Make(web("server", "") + `
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {app: server}, ports: [{name: tcp, port: 80, protocol: TCP, targetPort: 8080}, {name: udp, port: 80, protocol: UDP, ` +
		`targetPort: 8080}]}
`)
	podNamed(a, "client", "", "")
	a.Ready("app in (server, client)", 2)
	tcp, udp := "wget -T 1 -O - http://both/hostname", "echo hello | nc -u both 80"
	answers(a, "client", tcp, "server")
	answers(a, "client", udp, "server hello")
	a.K("patch", "service", "both", "--type=merge", "-p",
		`{"spec":{"ports":[{"name":"tcp","port":80,"protocol":"TCP","targetPort":8080}]}}`)
	a.Until("UDP is served no more", func() string {
		if out := runIn(a, "client", udp); strings.Contains(out, "server hello") {
			return out
		}
		return ""
	})
	answers(a, "client", tcp, "server")
	a.K("patch", "service", "both", "--type=merge", "-p",
		`{"spec":{"ports":[{"name":"udp","port":80,"protocol":"UDP","targetPort":8080}]}}`)
	answers(a, "client", udp, "server hello")
	a.Until("TCP is served no more", func() string {
		if out := runIn(a, "client", tcp); out == "server" {
			return out
		}
		return ""
	})
}

// proxies: the API server leads to pods and Services by name and port, and to
// the node's agent.
func proxies(a *kit.Namespace) {
	a.Make(web("server", `, ports: [{name: dest, containerPort: 8080}]`) + `
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: server}, ports: [{name: portname1, port: 80, targetPort: dest}, {name: portname2, port: 81, targetPort: 8080}]}
`)
	a.Ready("app=server", 1)
	base := "/api/v1/namespaces/" + a.Name
	for _, path := range []string{"/services/front:portname1/proxy/hostname", "/services/http:front:portname2/proxy/hostname",
		"/services/front:80/proxy/hostname", "/pods/server/proxy/hostname", "/pods/http:server:8080/proxy/hostname"} {
		a.Until("proxy "+path, func() string {
			out, err := a.TryKubectl("", "get", "--raw", base+path)
			if err != nil || strings.TrimSpace(out) != "server" {
				return out
			}
			return ""
		})
	}
	if out := a.Kubectl("get", "--raw", "/api/v1/nodes/"+a.NodeName()+"/proxy/pods"); !strings.Contains(out, `"server"`) {
		a.T.Errorf("the agent lists %.300s", out)
	}
}

// hairpinAndAffinity: a pod reaches itself through its Service, and a client
// keeps its pod while it should, also at a node port.
func hairpinAndAffinity(a *kit.Namespace) {
	a.Make(web("one", "") + web("two", "") + `
apiVersion: v1
kind: Service
metadata: {name: self}
spec: {selector: {app: one}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {type: NodePort, sessionAffinity: ClientIP, selector: {group: web}, ports: [{port: 80, targetPort: 8080}]}
`)
	a.Ready("group=web", 2)
	answers(a, "one", "wget -T 2 -O - http://self/hostname", "one")
	ip := a.Field("pod/one", "{.status.hostIP}")
	for _, at := range []string{"sticky", ip + ":" + a.Field("service/sticky", "{.spec.ports[0].nodePort}")} {
		script := "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -T 2 -O - http://" + at + "/hostname; done"
		pods := func(want int) func() string {
			return func() string {
				out := runIn(a, "two", script)
				seen := map[string]bool{}
				for _, w := range strings.Fields(out) {
					seen[w] = true
				}
				if len(seen) != want || len(strings.Fields(out)) != 12 {
					return out
				}
				return ""
			}
		}
		a.Until("one pod answers at "+at, pods(1))
		a.K("patch", "service", "sticky", "--type=merge", "-p", `{"spec":{"sessionAffinity":"None"}}`)
		a.Until("both pods answer at "+at, pods(2))
		a.K("patch", "service", "sticky", "--type=merge", "-p", `{"spec":{"sessionAffinity":"ClientIP"}}`)
		a.Until("one pod answers again at "+at, pods(1))
	}
}
