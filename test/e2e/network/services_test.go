package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

const changing = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "berth.dev/toolbox:1", args: [serve, "8080"], ports: [{name: http, containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 80, targetPort: 8080, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: manual}
spec: {ports: [{name: p, port: 80}]}
`

// TestServicesChange turns running Services into what they were not, one step
// after the other, and connects after each: what users do by hand and the
// conformance tests by program.
func TestServicesChange(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	c.Apply(changing)
	pods := c.WaitReady("default", "app=web", 2)
	s := served{c, &pods[0]}
	s.reach("web:80", true)
	t.Run("ExternalName", func(t *testing.T) { s.in(t).alias() })
	t.Run("hand-written endpoints", func(t *testing.T) { s.in(t).manual(pods) })
	t.Run("another proxy's", func(t *testing.T) { s.in(t).anothers() })
	t.Run("headless slices", func(t *testing.T) { s.in(t).headlessSlice() })
	t.Run("affinity", func(t *testing.T) { s.in(t).affinity() })
	t.Run("distribution", func(t *testing.T) { s.in(t).distribution() })
	t.Run("load balancer", func(t *testing.T) { s.in(t).balanced() })
	t.Run("node port", func(t *testing.T) { s.in(t).nodePortAgain() })
}

// served is a cluster seen from one of its pods.
type served struct {
	*kit.Cluster
	pod *v1.Pod
}

func (s served) in(t *testing.T) served { return served{s.Cluster.In(t), s.pod} }

// reach waits until an address answers, or does not.
func (s served) reach(address string, want bool) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("%s answers: %t", address, want), func() (bool, string) {
		ok, out := reaches(s.Cluster, s.pod, address)
		return ok == want, out
	})
}

func (s served) patch(kind, name, patch string) {
	s.T.Helper()
	s.Kubectl("patch", kind, name, "--type=merge", "-p", patch)
}

// alias becomes a Service with an address and a name only again.
func (s served) alias() {
	s.reach("alias:80", true)
	s.patch("service", "alias",
		`{"spec":{"type":"NodePort","externalName":null,"selector":{"app":"web"},"ports":[{"port":81,"targetPort":8080}]}}`)
	s.reach("alias:81", true)
	svc := service(s.Cluster, "alias")
	ip, port := svc.Spec.ClusterIP, svc.Spec.Ports[0].NodePort
	s.reach(ip+":81", true)
	s.reach(fmt.Sprintf("%s:%d", s.pod.Status.HostIP, port), true)
	s.patch("service", "alias", `{"spec":{"type":"ExternalName","externalName":"web.default.svc.cluster.local"}}`)
	if svc = service(s.Cluster, "alias"); svc.Spec.ClusterIP != "" || svc.Spec.Ports[0].NodePort != 0 {
		s.T.Errorf("an ExternalName keeps the address %q and the node port %d", svc.Spec.ClusterIP, svc.Spec.Ports[0].NodePort)
	}
	s.reach(ip+":81", false)
	s.reach(fmt.Sprintf("%s:%d", s.pod.Status.HostIP, port), false)
	s.reach("alias:80", true)
}

// manual has Endpoints that somebody wrote.
func (s served) manual(pods []v1.Pod) {
	for _, p := range pods {
		s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Endpoints
metadata: {name: manual}
subsets: [{addresses: [{ip: %s}], ports: [{name: p, port: 8080}]}]
`, p.Status.PodIP))
		s.Eventually("the endpoint "+p.Name, func() (bool, string) {
			out, _ := s.TryKubectl("", "exec", s.pod.Name, "--", "toolbox", "wget", "-T", "1", "-O", "-", "http://manual/")
			return strings.Contains(out, p.Name), out
		})
	}
	s.Kubectl("delete", "endpoints", "manual")
	s.reach("manual:80", false)
}

// anothers: the label comes to a Service that is served, and goes again.
func (s served) anothers() {
	s.Kubectl("label", "service", "web", "service.kubernetes.io/service-proxy-name=somebody")
	s.reach("web:80", false)
	s.Kubectl("label", "service", "web", "service.kubernetes.io/service-proxy-name-")
	s.reach("web:80", true)
}

// headlessSlice: a slice of somebody's own for the Service without endpoints,
// which a label takes from the proxy.
func (s served) headlessSlice() {
	s.Apply(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: own, labels: {kubernetes.io/service-name: manual}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: p, port: 8080, protocol: TCP}]
`, s.pod.Status.PodIP))
	s.reach("manual:80", true)
	s.Kubectl("label", "endpointslice", "own", "service.kubernetes.io/headless=")
	s.reach("manual:80", false)
	s.Kubectl("label", "endpointslice", "own", "service.kubernetes.io/headless-")
	s.reach("manual:80", true)
	s.Kubectl("delete", "endpointslice", "own")
	s.reach("manual:80", false)
}

// affinity is switched on: one pod answers; and off: both do.
func (s served) affinity() {
	s.patch("service", "web", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	s.Eventually("one pod for one client", func() (bool, string) { return s.answering(10) == 1, "" })
	s.patch("service", "web", `{"spec":{"sessionAffinity":"None"}}`)
	s.Eventually("both pods", func() (bool, string) { return s.answering(10) == 2, "" })
}

// answering counts the pods that answer so many connections.
func (s served) answering(connections int) int {
	seen := map[string]bool{}
	for range connections {
		out, _ := s.TryKubectl("", "exec", s.pod.Name, "--", "toolbox", "wget", "-T", "1", "-O", "-", "http://web/")
		seen[out] = true
	}
	return len(seen)
}

// distribution: what a Service prefers comes into its slices as hints.
func (s served) distribution() {
	s.Kubectl("label", "node", s.NodeName(), "topology.kubernetes.io/zone=here", "--overwrite")
	defer s.Kubectl("label", "node", s.NodeName(), "topology.kubernetes.io/zone-")
	zone, node := "here", s.NodeName()
	for _, x := range []struct{ prefers, zone, node string }{{"PreferClose", zone, ""}, {"PreferSameZone", zone, ""},
		{"PreferSameNode", zone, node}} {
		s.patch("service", "web", fmt.Sprintf(`{"spec":{"trafficDistribution":%q}}`, x.prefers))
		s.hinted(x.prefers, 2, x.zone, x.node)
		s.reach("web:80", true)
	}
	s.patch("service", "web", `{"spec":{"trafficDistribution":null}}`)
	s.hinted("nothing", 2, "", "")
}

// hinted waits until all endpoints of web have these hints and no others.
func (s served) hinted(what string, endpoints int, zone, node string) {
	s.T.Helper()
	s.Eventually("hints of "+what, func() (bool, string) {
		list, err := s.Client.DiscoveryV1().EndpointSlices("default").List(s.T.Context(),
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			return false, err.Error()
		}
		right := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				var zones, nodes []string
				if e.Hints != nil {
					for _, z := range e.Hints.ForZones {
						zones = append(zones, z.Name)
					}
					for _, n := range e.Hints.ForNodes {
						nodes = append(nodes, n.Name)
					}
				}
				if slices.Equal(zones, strings.Fields(zone)) && slices.Equal(nodes, strings.Fields(node)) {
					right++
				}
			}
		}
		return right == endpoints, fmt.Sprint(list.Items)
	})
}

// balanced: the address of a load balancer answers unless the balancer passes
// connections on itself.
func (s served) balanced() {
	const ip = "198.51.100.77"
	s.patch("service", "web", `{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local"}}`)
	check := service(s.Cluster, "web").Spec.HealthCheckNodePort
	if check == 0 {
		s.T.Fatal("no port for health checks")
	}
	for _, mode := range []v1.LoadBalancerIPMode{v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy, v1.LoadBalancerIPModeVIP} {
		s.Kubectl("patch", "service", "web", "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":%q}]}}}`, ip, mode))
		s.reach(ip+":80", mode == v1.LoadBalancerIPModeVIP)
	}
	s.patch("service", "web", `{"spec":{"loadBalancerSourceRanges":["203.0.113.0/24"]}}`)
	s.reach(ip+":80", false)
	s.patch("service", "web", `{"spec":{"type":"ClusterIP","loadBalancerSourceRanges":null}}`)
	svc := service(s.Cluster, "web")
	if svc.Spec.HealthCheckNodePort != 0 || svc.Spec.Ports[0].NodePort != 0 || len(svc.Status.LoadBalancer.Ingress) > 0 {
		s.T.Errorf("a ClusterIP keeps what only a LoadBalancer has: %+v, %+v", svc.Spec, svc.Status)
	}
	s.reach(ip+":80", false)
	s.reach("web:80", true)
}

// nodePortAgain: a node port that one Service gave back is another's.
func (s served) nodePortAgain() {
	expose := func(name string) string {
		s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`, name))
		return fmt.Sprint(service(s.Cluster, name).Spec.Ports[0].NodePort)
	}
	port := expose("first")
	at := s.pod.Status.HostIP + ":" + port
	s.reach(at, true)
	s.Kubectl("delete", "service", "first")
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: second}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: %s}]}
`, port))
	s.reach(at, true)
	s.Kubectl("delete", "service", "second")
	s.reach(at, false)
}
