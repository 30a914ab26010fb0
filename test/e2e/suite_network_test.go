package e2e

import (
	"fmt"
	"strings"
)

var networkTests = []appTest{
	{"host ports", hostPorts},
	{"names in pods", namesInPods},
	{"one port two protocols", onePortTwoProtocols},
	{"proxies", proxies},
	{"hairpin and affinity", hairpinAndAffinity},
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

// from runs a shell line in a pod.
func (a *apps) from(pod, script string) string {
	a.t.Helper()
	out, _ := a.tryKubectl("", "-n", a.ns, "exec", pod, "--", "sh", "-c", script)
	return strings.TrimSpace(out)
}

func (a *apps) answers(from, script, want string) {
	a.t.Helper()
	a.until(fmt.Sprintf("%s says %q", script, want), func() string {
		if out := a.from(from, script); !strings.Contains(out, want) {
			return "it says " + out
		}
		return ""
	})
}

// hostPorts: pods share a number if the address or the protocol differs, and
// each is reached at its own.
func hostPorts(a *apps) {
	ip := a.kubectl("get", "node", a.nodeName(), "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	port := func(ip, protocol string) string {
		return fmt.Sprintf(`, ports: [{containerPort: 8080, hostPort: 54323, hostIP: %q, protocol: %s}]`, ip, protocol)
	}
	a.make(web("pod1", port("127.0.0.1", "TCP")) + web("pod2", port(ip, "TCP")) + web("pod3", port(ip, "UDP")))
	a.pod("host", "hostNetwork: true", "")
	a.ready("group=web", 3)
	a.ready("app=host", 1)
	a.answers("host", "wget -T 2 -O - http://127.0.0.1:54323/hostname", "pod1")
	a.answers("host", fmt.Sprintf("wget -T 2 -O - http://%s:54323/hostname", ip), "pod2")
	a.answers("host", fmt.Sprintf("echo hello | nc -u %s 54323", ip), "pod3 hello")
}

// namesInPods: what a pod calls itself, whom it asks, and what it is told.
func namesInPods(a *apps) {
	a.make(`
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
	a.pod("querier", "hostname: querier-2\nsubdomain: group", "")
	a.pod("own", "dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1], searches: [resolv.conf.local], options: [{name: ndots, value: "+
		"\"2\"}]}", "")
	a.ready("app=querier", 1)
	a.ready("app=own", 1)
	full := "querier-2.group." + a.ns + ".svc.cluster.local"
	if got := a.from("querier", "cat /etc/hosts; hostname"); !strings.Contains(got, full+"\tquerier-2") ||
		!strings.HasSuffix(got, "\nquerier-2") {
		a.t.Errorf("the pod knows itself as %q", got)
	}
	ip := a.field("pod/querier", "{.status.podIP}")
	for _, name := range []string{full, "querier-2.group", "group", strings.ReplaceAll(ip, ".", "-") + "." + a.ns + ".pod.cluster.local"} {
		a.answers("querier", "nslookup "+name, ip)
	}
	regular := a.field("service/regular", "{.spec.clusterIP}")
	for _, name := range []string{"regular", "regular." + a.ns, "regular." + a.ns + ".svc", "regular." + a.ns + ".svc.cluster.local"} {
		a.answers("querier", "nslookup "+name, regular)
	}
	a.answers("querier", "nslookup kubernetes.default", a.kubectl("get", "service", "kubernetes", "-n", "default", "-o",
		"jsonpath={.spec.clusterIP}"))
	if got := a.from("own", "cat /etc/resolv.conf"); !strings.Contains(got, "nameserver 1.1.1.1") ||
		!strings.Contains(got, "search resolv.conf.local") || !strings.Contains(got, "ndots:2") || strings.Contains(got, "cluster.local") {
		a.t.Errorf("a pod with its own settings has %q", got)
	}
	// A name that becomes a Service has an address from then on.
	a.k("patch", "service", "elsewhere", "--type=merge", "-p",
		`{"spec":{"type":"ClusterIP","externalName":null,"ports":[{"port":80,"name":"http","protocol":"TCP"}]}}`)
	a.answers("querier", "nslookup elsewhere", a.field("service/elsewhere", "{.spec.clusterIP}"))
}

// onePortTwoProtocols: a Service gives up one of its protocols and takes it
// back, and the other goes on.
func onePortTwoProtocols(a *apps) {
	a.make(web("server", "") + `
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {app: server}, ports: [{name: tcp, port: 80, protocol: TCP, targetPort: 8080}, {name: udp, port: 80, protocol: UDP, ` +
		`targetPort: 8080}]}
`)
	a.pod("client", "", "")
	a.ready("app in (server, client)", 2)
	tcp, udp := "wget -T 1 -O - http://both/hostname", "echo hello | nc -u both 80"
	a.answers("client", tcp, "server")
	a.answers("client", udp, "server hello")
	a.k("patch", "service", "both", "--type=merge", "-p",
		`{"spec":{"ports":[{"name":"tcp","port":80,"protocol":"TCP","targetPort":8080}]}}`)
	a.until("UDP is served no more", func() string {
		if out := a.from("client", udp); strings.Contains(out, "server hello") {
			return out
		}
		return ""
	})
	a.answers("client", tcp, "server")
	a.k("patch", "service", "both", "--type=merge", "-p",
		`{"spec":{"ports":[{"name":"udp","port":80,"protocol":"UDP","targetPort":8080}]}}`)
	a.answers("client", udp, "server hello")
	a.until("TCP is served no more", func() string {
		if out := a.from("client", tcp); out == "server" {
			return out
		}
		return ""
	})
}

// proxies: the API server leads to pods and Services by name and port, and to
// the node's agent.
func proxies(a *apps) {
	a.make(web("server", `, ports: [{name: dest, containerPort: 8080}]`) + `
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: server}, ports: [{name: portname1, port: 80, targetPort: dest}, {name: portname2, port: 81, targetPort: 8080}]}
`)
	a.ready("app=server", 1)
	base := "/api/v1/namespaces/" + a.ns
	for _, path := range []string{"/services/front:portname1/proxy/hostname", "/services/http:front:portname2/proxy/hostname",
		"/services/front:80/proxy/hostname", "/pods/server/proxy/hostname", "/pods/http:server:8080/proxy/hostname"} {
		a.until("proxy "+path, func() string {
			out, err := a.tryKubectl("", "get", "--raw", base+path)
			if err != nil || strings.TrimSpace(out) != "server" {
				return out
			}
			return ""
		})
	}
	if out := a.kubectl("get", "--raw", "/api/v1/nodes/"+a.nodeName()+"/proxy/pods"); !strings.Contains(out, `"server"`) {
		a.t.Errorf("the agent lists %.300s", out)
	}
}

// hairpinAndAffinity: a pod reaches itself through its Service, and a client
// keeps its pod while it should, also at a node port.
func hairpinAndAffinity(a *apps) {
	a.make(web("one", "") + web("two", "") + `
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
	a.ready("group=web", 2)
	a.answers("one", "wget -T 2 -O - http://self/hostname", "one")
	ip := a.field("pod/one", "{.status.hostIP}")
	for _, at := range []string{"sticky", ip + ":" + a.field("service/sticky", "{.spec.ports[0].nodePort}")} {
		script := "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -T 2 -O - http://" + at + "/hostname; done"
		pods := func(want int) func() string {
			return func() string {
				out := a.from("two", script)
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
		a.until("one pod answers at "+at, pods(1))
		a.k("patch", "service", "sticky", "--type=merge", "-p", `{"spec":{"sessionAffinity":"None"}}`)
		a.until("both pods answer at "+at, pods(2))
		a.k("patch", "service", "sticky", "--type=merge", "-p", `{"spec":{"sessionAffinity":"ClientIP"}}`)
		a.until("one pod answers again at "+at, pods(1))
	}
}
