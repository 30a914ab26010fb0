package cluster

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// everyNode is what an administrator sets on every node, whatever starts its
// agent. Each field differs from its default.
const everyNode = `
tlsMinVersion: VersionTLS13
rotateCertificates: true
protectKernelDefaults: false
failSwapOn: false
oomScoreAdj: 77
maxOpenFiles: 12345
maxPods: 42
podPidsLimit: 999
seccompDefault: false
registryPullQPS: 7
registryBurst: 14
serializeImagePulls: false
maxParallelImagePulls: 3
containerLogMaxSize: 3Mi
containerLogMaxFiles: 3
imageGCHighThresholdPercent: 91
imageGCLowThresholdPercent: 71
nodeStatusReportFrequency: 4m0s
allowedUnsafeSysctls: ["kernel.msg*"]
kubeReserved: {cpu: 10m, memory: 20Mi}
enforceNodeAllocatable: [pods]
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
evictionSoft: {memory.available: 60Mi}
evictionSoftGracePeriod: {memory.available: 30s}
evictionMaxPodGracePeriod: 11
topologyManagerPolicy: best-effort
eventRecordQPS: 33
memorySwap: {swapBehavior: NoSwap}
`

// ofTheRole are the fields that say where a node's parts are and how it gets its
// serving certificate. The role, or here the test's own configuration of a lone
// agent, sets them.
var ofTheRole = []string{"address", "authentication", "cgroupRoot", "clusterDNS", "containerRuntimeEndpoint", "healthzPort", "podLogsDir",
	"port", "resolvConf", "serverTLSBootstrap", "staticPodPath", "tlsCertFile", "tlsPrivateKeyFile", "volumePluginDir", "failCgroupV1"}

// role is what a running agent has of everyNode.
type role struct {
	configz map[string]any
	pods    string // the node's capacity
	score   string // OOM score of the process
	tls12   bool   // it takes TLS 1.2
}

// TestRolesShowTheSameConfiguration starts an agent by `berth up`, by `berth
// join` and by `berth agent` with one KubeletConfiguration, and compares /configz
// field by field, and what can be seen from outside.
func TestRolesShowTheSameConfiguration(t *testing.T) {
	roles := map[string]role{}
	t.Run("up", func(t *testing.T) {
		c := kit.NewCluster(t)
		c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, everyNode))
		c.Up()
		roles["up"] = look(c, c.NodeName(), c.PID(), net.JoinHostPort("127.0.0.1", strconv.Itoa(c.FirstPort+1)))
	})
	t.Run("join", func(t *testing.T) {
		r := kit.NewHosts(t)
		h := r.AddHost("a")
		h.Join("--agent-config", kit.AgentConfig(t, everyNode))
		roles["join"] = look(r.Cluster, "a", (&kit.Cluster{T: t, Dir: h.Dir}).PID(), net.JoinHostPort(h.IP, "10250"))
	})
	t.Run("agent", func(t *testing.T) {
		b := kit.NewRig(t, "10.203.0.0/16", "10.203.0.0/24")
		agent, err := b.StartAgent("lone", strings.Replace(everyNode, "failSwapOn: false\n", "", 1)) // the rig says it itself
		kit.Must(t, err)
		kit.Must(t, b.WaitNode(t.Context(), "lone"))
		roles["agent"] = look(b.Cluster, "lone", agent.Process.Pid, net.JoinHostPort("127.0.0.1", strconv.Itoa(agent.Port)))
		b.Clear(agent)
	})
	up := roles["up"]
	if len(up.configz) < 60 {
		t.Fatalf("/configz of `berth up` has %d fields", len(up.configz))
	}
	for name, r := range roles {
		for field := range merged(up.configz, r.configz) {
			if !reflect.DeepEqual(up.configz[field], r.configz[field]) {
				t.Errorf("%s: %s shows %v, `berth up` %v", field, name, r.configz[field], up.configz[field])
			}
		}
		if r.pods != "42" || r.score != "77" || r.tls12 {
			t.Errorf("%s: the node takes %s pods, the process has OOM score %s, takes TLS 1.2: %t", name, r.pods, r.score, r.tls12)
		}
	}
}

func merged(a, b map[string]any) map[string]bool {
	out := map[string]bool{}
	for _, m := range []map[string]any{a, b} {
		for k := range m {
			out[k] = true
		}
	}
	for _, k := range ofTheRole {
		delete(out, k)
	}
	return out
}

func look(c *kit.Cluster, node string, pid int, agent string) role {
	c.T.Helper()
	var shown struct {
		Kubelet map[string]any `json:"kubeletconfig"`
	}
	kit.Must(c.T, json.Unmarshal([]byte(c.Kubectl("get", "--raw", "/api/v1/nodes/"+node+"/proxy/configz")), &shown))
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	kit.Must(c.T, err)
	var n v1.Node
	kit.Must(c.T, json.Unmarshal([]byte(c.Kubectl("get", "node", node, "-o", "json")), &n))
	r := role{configz: shown.Kubelet, pods: n.Status.Capacity.Pods().String(), score: strings.TrimSpace(string(score))}
	conn, err := tls.Dial("tcp", agent, &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // it must fail
	if err == nil {
		conn.Close()
		r.tls12 = true
	} else if !strings.Contains(err.Error(), "protocol version") {
		c.T.Errorf("TLS 1.2 is refused for another reason: %v", err)
	}
	return r
}
