package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const batteries = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: burner}
spec:
  selector: {matchLabels: {app: burner}}
  template:
    metadata: {labels: {app: burner}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: berth.dev/toolbox:1
        command: [sh, -c, "while true; do :; done"]
        resources: {requests: {cpu: 50m}, limits: {cpu: 100m, memory: 32Mi}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burner}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burner}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: "berth.dev/toolbox:1", command: [serve], readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: PORT, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: ssh}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 22, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: late}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: PORT, targetPort: 8080}]}
`

// TestBatteries: what a person finds after berth up, and does not have to
// bring: usage of nodes and pods, autoscaling by it, and an address for a
// Service of type LoadBalancer.
func TestBatteries(t *testing.T) {
	c := newCluster(t)
	c.extra = append(c.extra, "--agent-config", agentConfig(t, "evictionHard: {memory.available: 100Mi}\n"))
	c.up()
	port := freePorts(t, 1)
	c.apply(strings.ReplaceAll(batteries, "PORT", fmt.Sprint(port)))
	c.waitReady("default", "app=web", 1)

	t.Run("address", func(t *testing.T) {
		node := c.kubectl("get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
		c.eventually("the Service has the node's address", func() (bool, string) {
			out := c.kubectl("get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress}")
			return strings.Contains(out, `"ip":"`+node+`"`) && strings.Contains(out, `"ipMode":"VIP"`), out
		})
		client := http.Client{Timeout: 5 * time.Second}
		c.eventually("the address answers", func() (bool, string) {
			resp, err := client.Get("http://" + net.JoinHostPort(node, fmt.Sprint(port)) + "/")
			if err != nil {
				return false, err.Error()
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return err == nil && resp.StatusCode == http.StatusOK, fmt.Sprintf("%s %s %v", resp.Status, body, err)
		})
		for name, holder := range map[string]string{"ssh": "port 22/TCP belongs to ssh",
			"late": "belongs to the older Service default/web"} {
			c.eventually("an event says who holds the port of "+name, func() (bool, string) {
				out := c.kubectl("get", "events", "--field-selector", "involvedObject.kind=Service,involvedObject.name="+name, "-o",
					"jsonpath={.items[*].message}")
				return strings.Contains(out, holder), out
			})
			if out := c.kubectl("get", "service", name, "-o", "jsonpath={.status.loadBalancer.ingress}"); out != "" {
				t.Errorf("Service %s has %s", name, out)
			}
		}
		c.kubectl("delete", "service", "web")
		c.eventually("the younger Service gets the address", func() (bool, string) {
			out := c.kubectl("get", "service", "late", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			return out == node, out
		})
	})

	t.Run("top", func(t *testing.T) {
		c.eventually("kubectl top pods", func() (bool, string) {
			out, err := c.tryKubectl("", "top", "pods", "-l", "app=burner", "--no-headers")
			var name, memory string
			var cpu int
			_, scan := fmt.Sscanf(out, "%s %dm %s", &name, &cpu, &memory)
			return err == nil && scan == nil && cpu >= 50 && cpu <= 150 && strings.HasSuffix(memory, "Mi"), out
		})
		out := c.kubectl("top", "nodes", "--no-headers")
		if fields := strings.Fields(out); len(fields) != 5 || !strings.HasSuffix(fields[1], "m") || fields[1] == "0m" {
			t.Errorf("kubectl top nodes:\n%s", out)
		}
		if out := c.kubectl("get", "podmetrics", "--no-headers"); !strings.Contains(out, "burner-") {
			t.Errorf("kubectl get podmetrics:\n%s", out)
		}
	})

	t.Run("autoscaler", func(t *testing.T) {
		c.eventually("the autoscaler adds a replica", func() (bool, string) {
			out := c.kubectl("get", "hpa", "burner", "-o", "jsonpath={.status}")
			return strings.Contains(out, `"desiredReplicas":2`), out
		})
		c.waitReady("default", "app=burner", 2)
		out := c.kubectl("get", "events", "--field-selector", "involvedObject.kind=HorizontalPodAutoscaler", "-o",
			"jsonpath={.items[*].message}")
		if want := "New size: 2; reason: cpu resource utilization (percentage of request) above target"; !strings.Contains(out, want) {
			t.Errorf("events: %s, want %s", out, want)
		}
	})
}
