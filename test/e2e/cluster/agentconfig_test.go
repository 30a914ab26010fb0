package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestUpHonoursItsAgentConfig: fields of --agent-config that concern the process,
// the host and TLS have their documented effect under `berth up`, as under
// `berth join` and `berth agent`.
func TestUpHonoursItsAgentConfig(t *testing.T) {
	c := kit.NewCluster(t)
	c.Flags = append(c.Flags, "--agent-config", kit.AgentConfig(t, `
tlsMinVersion: VersionTLS13
rotateCertificates: true
serverTLSBootstrap: true
oomScoreAdj: 77
maxPods: 42
`))
	c.Up()
	var shown struct {
		Kubelet kubeletv1beta1.KubeletConfiguration `json:"kubeletconfig"`
	}
	if err := json.Unmarshal([]byte(c.NodeProxy("configz")), &shown); err != nil {
		t.Fatal(err)
	}
	if k := shown.Kubelet; k.TLSMinVersion != "VersionTLS13" || !k.RotateCertificates || !k.ServerTLSBootstrap || k.OOMScoreAdj == nil ||
		*k.OOMScoreAdj != 77 || k.MaxPods != 42 {
		t.Errorf("/configz shows %+v", k)
	}
	// One process is agent and proxy: the proxy's default does not win. A score
	// above 0 needs no privilege.
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.PID()))
	if err != nil || strings.TrimSpace(string(score)) != "77" {
		t.Errorf("the process has the OOM score %q (%v), want 77", score, err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(c.Dir, "pki", "agent-ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("reading the CA of agents: %v", err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.FirstPort+1))
	if conn, err := tls.Dial("tcp", address, &tls.Config{MaxVersion: tls.VersionTLS12,
		InsecureSkipVerify: true}); err == nil { //nolint:gosec // it must fail
		conn.Close()
		t.Error("the agent takes TLS 1.2 with tlsMinVersion: VersionTLS13")
	}
	node := c.Node()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: node.Status.Addresses[0].Address})
	if err != nil {
		t.Fatalf("with TLS 1.3: %v", err)
	}
	defer conn.Close()
	// A certificate that was asked for names the node as its request did, not
	// the host's loopback addresses as the one that `up` makes.
	if leaf := conn.ConnectionState().PeerCertificates[0]; leaf.VerifyHostname("127.0.0.1") == nil {
		t.Error("serverTLSBootstrap has no effect: the agent shows the certificate that the cluster made")
	}
	if out := c.Kubectl("get", "csr", "-o", "jsonpath={.items[*].spec.signerName}"); !strings.Contains(out,
		"kubernetes.io/kubelet-serving") {
		t.Errorf("no serving certificate was requested: %s", out)
	}
}
