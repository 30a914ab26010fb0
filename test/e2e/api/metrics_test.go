package api

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// metricsServer is what its makers publish to install it, with an image made
// here. It verifies the agent's serving certificate.
const metricsServer = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec:
  ports: [{name: https, port: 443, targetPort: https}]
  selector: {k8s-app: metrics-server}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system, labels: {k8s-app: metrics-server}}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      priorityClassName: system-cluster-critical
      containers:
      - name: metrics-server
        image: berth.dev/metrics-server:test
        imagePullPolicy: Never
        args:
        - --cert-dir=/tmp
        - --secure-port=10250
        - --kubelet-preferred-address-types=InternalIP
        - --kubelet-use-node-status-port
        - --kubelet-certificate-authority=/agents/ca.crt
        - --metric-resolution=10s
        - --kubelet-request-timeout=5s
        ports: [{name: https, containerPort: 10250}]
        livenessProbe: {httpGet: {path: /livez, port: https, scheme: HTTPS}}
        readinessProbe: {httpGet: {path: /readyz, port: https, scheme: HTTPS}, periodSeconds: 1}
        resources: {requests: {cpu: 100m, memory: 200Mi}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
          readOnlyRootFilesystem: true
          runAsNonRoot: true
          runAsUser: 1000
          seccompProfile: {type: RuntimeDefault}
        volumeMounts: [{name: tmp, mountPath: /tmp}, {name: agents, mountPath: /agents}]
      volumes: [{name: tmp, emptyDir: {}}, {name: agents, configMap: {name: kubelet-serving-ca.crt}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
`

const burner = `
apiVersion: v1
kind: Pod
metadata: {name: burner}
spec:
  containers:
  - name: main
    image: berth.dev/toolbox:1
    command: [sh, -c, "while true; do :; done"]
    resources: {limits: {cpu: 100m, memory: 32Mi}}
`

// TestMetricsServer runs the real metrics-server behind the API server and asks
// it with kubectl top.
func TestMetricsServer(t *testing.T) {
	kit.OnlyInAll(t, "builds metrics-server, minutes with an empty build cache")
	c := kit.NewCluster(t)
	// A host whose disk is nearly full is no concern of this test.
	c.Flags = append(c.Flags, "--images-dir", metricsImages(t, c.Bin), "--agent-config",
		kit.AgentConfig(t, "evictionHard: {memory.available: 100Mi}\n"))
	c.Up()
	c.Apply(burner + "---" + metricsServer)
	c.WaitReady("default", "", 1)
	c.WaitReady("kube-system", "k8s-app=metrics-server", 1)
	c.Eventually("the registration is available", func() (bool, string) {
		out, err := c.TryKubectl("", "get", "apiservice", "v1beta1.metrics.k8s.io", "-o",
			`jsonpath={.status.conditions[?(@.type=="Available")]}`)
		return err == nil && strings.Contains(out, `"status":"True"`), out
	})
	// Its first figures need two scrapes.
	c.Eventually("kubectl top pods", func() (bool, string) {
		out, err := c.TryKubectl("", "top", "pods", "--no-headers")
		var name, memory string
		var cpu int
		_, scan := fmt.Sscanf(out, "%s %dm %s", &name, &cpu, &memory)
		// The limit is 100m; a scrape takes its time, hence the room above.
		return err == nil && scan == nil && name == "burner" && cpu >= 50 && cpu <= 150 && strings.HasSuffix(memory, "Mi"), out
	})
	out := c.Kubectl("top", "nodes", "--no-headers")
	if fields := strings.Fields(out); len(fields) != 5 || !strings.HasSuffix(fields[1], "m") || !strings.HasSuffix(fields[4], "%") ||
		fields[1] == "0m" {
		t.Errorf("kubectl top nodes:\n%s", out)
	}
	if out := c.Kubectl("top", "pods", "-A", "--containers"); !strings.Contains(out, "metrics-server") {
		t.Errorf("kubectl top pods -A --containers:\n%s", out)
	}
}

// metricsImages is a directory with the usual images and metrics-server's,
// which is built here.
func metricsImages(t *testing.T, bin string) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(kit.Tools{Module: "metrics-server"}.Build(t, "sigs.k8s.io/metrics-server/cmd/metrics-server"),
		"metrics-server")
	usual, err := filepath.Glob(filepath.Join(bin, "images", "*.tar"))
	if err != nil || len(usual) == 0 {
		t.Fatalf("no images in %s: %v", bin, err)
	}
	for _, file := range usual {
		if err := os.Symlink(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	make := exec.Command(filepath.Join(bin, "mkimage"), "-out", filepath.Join(dir, "metrics-server.tar"), "-name",
		"berth.dev/metrics-server:test",
		"-entrypoint", "/metrics-server", "-file", "/metrics-server="+program)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("making the image: %v\n%s", err, out)
	}
	return dir
}
