package api

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/e2e/kit"
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
	c := kit.NewCluster(t)
	c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, "evictionHard: {memory.available: 100Mi}\n"))
	c.Up()
	port := kit.FreePorts(t, 1)
	c.Apply(strings.ReplaceAll(batteries, "PORT", fmt.Sprint(port)))
	c.WaitReady("default", "app=web", 1)

	t.Run("address", func(t *testing.T) {
		node := c.Kubectl("get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
		c.Eventually("the Service has the node's address", func() (bool, string) {
			out := c.Kubectl("get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress}")
			return strings.Contains(out, `"ip":"`+node+`"`) && strings.Contains(out, `"ipMode":"VIP"`), out
		})
		client := http.Client{Timeout: 5 * time.Second}
		c.Eventually("the address answers", func() (bool, string) {
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
			c.Eventually("an event says who holds the port of "+name, func() (bool, string) {
				out := c.Kubectl("get", "events", "--field-selector", "involvedObject.kind=Service,involvedObject.name="+name, "-o",
					"jsonpath={.items[*].message}")
				return strings.Contains(out, holder), out
			})
			if out := c.Kubectl("get", "service", name, "-o", "jsonpath={.status.loadBalancer.ingress}"); out != "" {
				t.Errorf("Service %s has %s", name, out)
			}
		}
		c.Kubectl("delete", "service", "web")
		c.Eventually("the younger Service gets the address", func() (bool, string) {
			out := c.Kubectl("get", "service", "late", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			return out == node, out
		})
	})

	t.Run("top", func(t *testing.T) {
		c.Eventually("kubectl top pods", func() (bool, string) {
			out, err := c.TryKubectl("", "top", "pods", "-l", "app=burner", "--no-headers")
			var name, memory string
			var cpu int
			_, scan := fmt.Sscanf(out, "%s %dm %s", &name, &cpu, &memory)
			return err == nil && scan == nil && cpu >= 50 && cpu <= 150 && strings.HasSuffix(memory, "Mi"), out
		})
		out := c.Kubectl("top", "nodes", "--no-headers")
		if fields := strings.Fields(out); len(fields) != 5 || !strings.HasSuffix(fields[1], "m") || fields[1] == "0m" {
			t.Errorf("kubectl top nodes:\n%s", out)
		}
		if out := c.Kubectl("get", "podmetrics", "--no-headers"); !strings.Contains(out, "burner-") {
			t.Errorf("kubectl get podmetrics:\n%s", out)
		}
	})

	t.Run("autoscaler", func(t *testing.T) {
		c.Eventually("the autoscaler adds a replica", func() (bool, string) {
			out := c.Kubectl("get", "hpa", "burner", "-o", "jsonpath={.status}")
			return strings.Contains(out, `"desiredReplicas":2`), out
		})
		c.WaitReady("default", "app=burner", 2)
		out := c.Kubectl("get", "events", "--field-selector", "involvedObject.kind=HorizontalPodAutoscaler", "-o",
			"jsonpath={.items[*].message}")
		if want := "New size: 2; reason: cpu resource utilization (percentage of request) above target"; !strings.Contains(out, want) {
			t.Errorf("events: %s, want %s", out, want)
		}
	})
}
