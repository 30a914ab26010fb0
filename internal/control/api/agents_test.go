package api_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestNewClientCertificateForAgents: the server shows agents the certificate
// that its files hold now, without being started again.
func TestNewClientCertificateForAgents(t *testing.T) {
	agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.PeerCertificates[0].SerialNumber)
	}))
	ca := apitest.NewAgentCA(t)
	agent.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{ca.Serving(t, "n", "127.0.0.1")}}
	agent.StartTLS()
	defer agent.Close()
	env := apitest.StartEnv(t, apitest.WithConfig(func(c *api.Config) { c.PKI.KubeletCA, c.ProxyToLoopback = ca.File(), true }))
	client := clients(t, env.Config)
	host, text, err := net.SplitHostPort(agent.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	shown := func() string {
		t.Helper()
		body, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/n/proxy/whoami").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	before, want := shown(), env.RenewAgentClient(t).String()
	if before == want {
		t.Fatalf("the new certificate is the old one")
	}
	for shown() != want { // ends with the file's event, or with the test's deadline
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
}
