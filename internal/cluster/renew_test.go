package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/pki"
)

// controlPlane is an API server with the certificates of a cluster in a
// temporary directory.
type controlPlane struct {
	*up
	server *api.Server
}

func newControlPlane(t *testing.T, life time.Duration) *controlPlane {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &Config{DataDir: t.TempDir(), NodeIP: "127.0.0.1", CertificateLife: life}
	cfg.NodeName, cfg.ServiceCIDR, cfg.ClusterDomain = "n", "10.96.0.0/16", "cluster.local"
	cfg.Ports.API = l.Addr().(*net.TCPAddr).Port
	u := &up{Config: cfg, log: slog.New(slog.DiscardHandler)}
	if u.files, _, err = cfg.certificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	u.ends.Store(&u.files.Ends)
	if u.store, err = store.Start(t.Context(), store.Config{DataDir: cfg.Path("etcd")}); err != nil {
		t.Fatal(err)
	}
	f := u.files
	c := &controlPlane{up: u}
	c.server, err = api.New(api.Config{Store: u.store, Listener: l, AdvertiseAddress: net.IPv4(192, 0, 2, 10),
		ServiceCIDRs: []string{cfg.ServiceCIDR}, PKI: api.PKI{
			ClientCA: f.CA.Cert, ServingCert: f.API.Cert, ServingKey: f.API.Key, ServiceAccountKey: f.ServiceAccountKey,
			KubeletCA: f.AgentTrust, KubeletClientCert: f.KubeletClient.Cert, KubeletClientKey: f.KubeletClient.Key,
			FrontProxyCA: f.FrontProxyCA.Cert, FrontProxyCert: f.FrontProxyClient.Cert, FrontProxyKey: f.FrontProxyClient.Key,
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		u.store.Close()
	})
	<-c.server.Ready()
	if err := grant(t.Context(), kubernetes.NewForConfigOrDie(c.server.LoopbackConfig())); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *controlPlane) client(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

// TestCertificatesAreRenewedWhileRunning is finding 15, with a life of seconds:
// through more than a whole life a strict client can connect at any time, the
// server changes its certificate, an open watch goes on, and the
// administrator's file works at the end.
func TestCertificatesAreRenewedWhileRunning(t *testing.T) {
	c := newControlPlane(t, 24*time.Second) // writing and following the files of a busy host takes a second or two
	first := map[string]time.Time{}
	for _, e := range *c.ends.Load() {
		first[e.Name] = e.End
	}
	ctx, cancel := context.WithCancel(t.Context())
	renewing := make(chan error, 1)
	go func() { renewing <- c.renewCertificates(ctx) }()
	watch, err := c.client(t, c.files.AdminKubeconfig).CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(c.files.CA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(ca)
	shown := map[string]bool{}
	for tick := time.NewTicker(100 * time.Millisecond); time.Now().Before(first["apiserver"].Add(time.Second)); <-tick.C {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.Ports.API), &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatalf("%s before the first certificate's end: %v", time.Until(first["apiserver"]), err)
		}
		shown[conn.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		conn.Close()
	}
	if len(shown) < 2 {
		t.Errorf("the server showed %d certificates in one life", len(shown))
	}
	for _, e := range *c.ends.Load() {
		if !e.End.After(first[e.Name]) || !e.End.After(time.Now()) {
			t.Errorf("%s ends at %s, as before", e.Name, e.End)
		}
	}
	for _, file := range []string{c.files.AdminKubeconfig, c.files.SuperAdminKubeconfig} {
		name := strings.TrimSuffix(filepath.Base(file), ".kubeconfig")
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.client(t, file).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Errorf("%s after a renewal: %v", file, err)
		}
	}
	for e := range watch.ResultChan() {
		if n, ok := e.Object.(*v1.Namespace); ok && n.Name == "super-admin" {
			break
		}
	}
	cancel()
	if err := <-renewing; err != nil {
		t.Error(err)
	}
}

// TestAdministratorsCanBeRevoked is finding 24: the everyday file is no
// system:masters, deleting a binding ends it, also over a restart, and the
// break-glass file goes on.
func TestAdministratorsCanBeRevoked(t *testing.T) {
	c := newControlPlane(t, 0)
	admin, super := c.client(t, c.files.AdminKubeconfig), c.client(t, c.files.SuperAdminKubeconfig)
	cert, err := pki.ReadCertificate(c.Path("pki", "admin.crt"))
	if err != nil || len(cert.Subject.Organization) != 1 || cert.Subject.Organization[0] != adminGroup {
		t.Errorf("the everyday administrator is %v, %v", cert.Subject, err)
	}
	for _, file := range []string{c.files.AdminKubeconfig, c.files.SuperAdminKubeconfig} {
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, st, err)
		}
	}
	for { // until the authorizer has seen the binding
		_, err := admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
	}
	if err := super.RbacV1().ClusterRoleBindings().Delete(t.Context(), adminGroup, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := grant(t.Context(), kubernetes.NewForConfigOrDie(c.server.LoopbackConfig())); err != nil { // as the next start does
		t.Fatal(err)
	}
	for {
		_, err := admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := super.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the break-glass administrator: %v", err)
	}
}

// TestOlderDataDirectoryStarts: a directory of the version with one CA gets the
// agents' CA, keeps its own, and believes what that signed for agents until it
// has ended. A CA that is lost later is not made again.
func TestOlderDataDirectoryStarts(t *testing.T) {
	cfg := &Config{DataDir: t.TempDir(), NodeIP: "192.0.2.1"}
	cfg.NodeName, cfg.ServiceCIDR, cfg.ClusterDomain = "n", "10.96.0.0/16", "cluster.local"
	then := time.Now().Add(-30 * 24 * time.Hour)
	old, err := pki.EnsureCA(cfg.Path("pki"), "ca", "", then)
	if err != nil {
		t.Fatal(err)
	}
	for name, leaf := range map[string]pki.Leaf{
		"agent-serving": {CommonName: "system:node:n", Organization: []string{"system:nodes"}, Server: true},
		"admin":         {CommonName: "berth-admin", Organization: []string{"system:masters"}, Client: true},
	} {
		if _, _, _, err := old.EnsureLeaf(cfg.Path("pki"), name, leaf, then); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pki.EnsureCA(cfg.Path("pki"), "front-proxy-ca", "", then); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Path("admin.kubeconfig"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, _, err := cfg.certificates(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if ca, err := pki.ReadCertificate(f.CA.Cert); err != nil || !ca.Equal(old.Cert) {
		t.Errorf("the CA changed: %v", err)
	}
	serving, err := pki.ReadCertificate(f.AgentServing.Cert)
	if err != nil || serving.CheckSignatureFrom(old.Cert) == nil {
		t.Errorf("the agent's serving certificate is still of the general CA: %v", err)
	}
	certificates := func() int {
		bundle, err := os.ReadFile(f.AgentTrust)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(bundle), "BEGIN CERTIFICATE")
	}
	if n := certificates(); n != 2 {
		t.Errorf("agents are believed by %d CAs, want the new and the old", n)
	}
	if _, _, err := cfg.certificates(time.Now().Add(oldServing + time.Hour)); err != nil || certificates() != 1 {
		t.Errorf("a year later agents are believed by %d CAs, %v", certificates(), err)
	}
	for _, name := range []string{"ca", agentCA, "front-proxy-ca"} {
		kept := map[string][]byte{}
		for _, suffix := range []string{".crt", ".key"} {
			file := cfg.Path("pki", name+suffix)
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			kept[file] = data
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := cfg.certificates(time.Now()); err == nil || !strings.Contains(err.Error(), "restore pki/ from a backup") {
			t.Errorf("%s lost: %v", name, err)
		}
		for file, data := range kept {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The lock file is no one's but root's, also where an older version made it (finding 26).
func TestLockIsPrivate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "lock")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	release, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestStatusTellsTheNextEnd(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &Status{Certificates: []certificateEnd{{Name: "apiserver", End: at, Renewal: at.Add(-time.Hour)}}}
	data, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(data), `"end":"2030-01-02T03:04:05Z"`) {
		t.Errorf("%s, %v", data, err)
	}
	var out strings.Builder
	s.Print(&out, at)
	if !strings.Contains(out.String(), "certs     next end "+at.Local().Format(time.DateTime)+" (apiserver)") {
		t.Error(out.String())
	}
}
