package launch_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/certs"
	"github.com/berth-dev/berth/internal/agent/reach"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// lifetime of the certificates of this test; they are renewed at 70 to 90 % of
// it.
const lifetime = 5 * time.Second

// issuer approves and signs whatever is requested, with the authority that the
// API server trusts.
type issuer struct {
	t      *testing.T
	client kubernetes.Interface
	ca     tls.Certificate
}

func newIssuer(t *testing.T, env *apitest.Env) *issuer {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(env.Dir, "pki", "ca.crt"), filepath.Join(env.Dir, "pki", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t: t, client: kubernetes.NewForConfigOrDie(env.Config), ca: pair}
}

func (s *issuer) run(ctx context.Context) {
	requests := s.client.CertificatesV1().CertificateSigningRequests()
	events, err := requests.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Error(err)
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
		if !ok || event.Type != watch.Added {
			continue
		}
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
			Status: v1.ConditionTrue, Reason: "Test"}}
		approved, err := requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		if err == nil {
			approved.Status.Certificate, err = s.sign(csr)
		}
		if err == nil {
			_, err = requests.UpdateStatus(ctx, approved, metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			s.t.Error(err)
		}
	}
}

func (s *issuer) sign(csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: request.Subject, NotBefore: now.Add(-time.Second), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
	}, s.ca.Leaf, request.PublicKey, s.ca.PrivateKey.(*ecdsa.PrivateKey))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// bootstrapped gets node n1 its kubeconfig with the rights of a joining machine.
func bootstrapped(t *testing.T, env *apitest.Env) certs.BootstrapConfig {
	t.Helper()
	admin := kubernetes.NewForConfigOrDie(env.Config)
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "joining"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:bootstrappers"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joining, dir := env.As(t, "system:bootstrap:0a1b2c", "system:bootstrappers"), t.TempDir()
	boot := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: joining.Host, CertificateAuthority: joining.CAFile}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: joining.CertFile, ClientKey: joining.KeyFile}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}
	cfg := certs.BootstrapConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Bootstrap: filepath.Join(dir, "bootstrap"), CertDir: filepath.Join(dir, "pki")}
	if err := clientcmd.WriteToFile(boot, cfg.Bootstrap); err != nil {
		t.Fatal(err)
	}
	if err := certs.Bootstrap(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestCertificatesRotateUnderTraffic bootstraps a node with certificates that
// live for seconds and lets several of them pass: requests go on, a watch and a
// connection to the agent opened at the beginning last to the end.
func TestCertificatesRotateUnderTraffic(t *testing.T) {
	env := apitest.StartEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { newIssuer(t, env).run(ctx) })
	boot := bootstrapped(t, env)
	own, err := clientcmd.BuildConfigFromFlags("", boot.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var client *kubernetes.Clientset
	var path *reach.Reach
	renewed := make(chan struct{}, 100)
	rotation, err := certs.NewRotation(certs.RotationConfig{Log: boot.Log, NodeName: "n1", CertDir: boot.CertDir, Kubeconfig: own,
		Client:  func() (kubernetes.Interface, error) { return client, nil },
		Changed: func() { path.Rotate(); renewed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	if path, err = reach.New(reach.Config{Log: boot.Log, Base: own, Certificate: rotation.Current}); err != nil {
		t.Fatal(err)
	}
	client = kubernetes.NewForConfigOrDie(path.Config())
	first := rotation.Current().Leaf
	wg.Go(func() {
		if err := rotation.Run(ctx); err != nil {
			t.Error(err)
		}
	})

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	events, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	conn, serial := serveAgent(t, ctx, &wg, boot, client)
	firstSerial := serial()

	marks := 0
	mark := func() {
		t.Helper()
		marks++
		text := []byte(`{"metadata":{"annotations":{"mark":"` + time.Now().Format(time.RFC3339Nano) + `"}}}`)
		changed, err := client.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, text, metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("request %d, %v after the first certificate ended: %v", marks, time.Since(first.NotAfter), err)
		}
		for {
			event, open := <-events.ResultChan()
			if !open {
				t.Fatalf("the watch was dropped after %d requests", marks)
			}
			if got, ok := event.Object.(*v1.Node); ok && got.ResourceVersion == changed.ResourceVersion {
				return
			}
		}
	}
	for range 3 { // certificates
		mark()
		<-renewed
		mark()
	}
	if now := time.Now(); now.Before(first.NotAfter) || rotation.Current().Leaf.NotAfter.Before(now) {
		t.Errorf("at %v the first certificate is good until %v, the present one until %v", now, first.NotAfter,
			rotation.Current().Leaf.NotAfter)
	}
	if serial().Cmp(firstSerial) == 0 {
		t.Error("the agent shows its first serving certificate still")
	}
	if _, err := io.WriteString(conn, "still"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "still" {
		t.Errorf("the connection opened with the first serving certificate: %q, %v", answer, err)
	}
}

// serveAgent listens with a serving certificate that the API server issues. It
// returns a connection and a question for the certificate that a new one sees.
func serveAgent(t *testing.T, ctx context.Context, wg *sync.WaitGroup, boot certs.BootstrapConfig, client kubernetes.Interface) (net.Conn,
	func() *big.Int) {
	t.Helper()
	serving, err := certs.NewServing(certs.ServingConfig{Log: boot.Log, NodeName: "n1", CertDir: boot.CertDir, Client: client,
		Kubelet:   &kubeletv1beta1.KubeletConfiguration{ServerTLSBootstrap: true},
		Addresses: func() []v1.NodeAddress { return []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "127.0.0.1"}} }})
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := serving.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	listener, err := tls.Listen("tcp", "127.0.0.1:0", serving.TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(caOf(t, boot))
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(pem)
	dial := func() *tls.Conn {
		t.Helper()
		for {
			conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: roots})
			if err == nil {
				return conn
			}
			if ctx.Err() != nil {
				t.Fatal(err) // else it has no certificate yet
			}
		}
	}
	conn := dial()
	t.Cleanup(func() { conn.Close() })
	return conn, func() *big.Int {
		fresh := dial()
		defer fresh.Close()
		return fresh.ConnectionState().PeerCertificates[0].SerialNumber
	}
}

// caOf is the authority's file as the node's kubeconfig names it.
func caOf(t *testing.T, boot certs.BootstrapConfig) string {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", boot.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.CAFile
}
