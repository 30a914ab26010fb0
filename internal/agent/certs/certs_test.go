package certs

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// signer approves and signs every request, as the control plane would.
type signer struct {
	key      *ecdsa.PrivateKey
	ca       *x509.Certificate
	lifetime time.Duration
	mu       sync.Mutex
	names    []string
}

func newSigner(t *testing.T, lifetime time.Duration) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "test"}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key: key, ca: ca, lifetime: lifetime}
}

func (s *signer) sign(public crypto.PublicKey, subject pkix.Name, template *x509.CertificateRequest) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: time.Now().Add(-time.Second),
		NotAfter: time.Now().Add(s.lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	if template != nil {
		cert.DNSNames, cert.IPAddresses = template.DNSNames, template.IPAddresses
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, s.ca, public, s.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

func (s *signer) run(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	events, err := client.CertificatesV1().CertificateSigningRequests().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		request, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
		if !ok || event.Type != "ADDED" {
			continue
		}
		s.mu.Lock()
		s.names = append(s.names, request.Name)
		s.mu.Unlock()
		block, _ := pem.Decode(request.Spec.Request)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			continue
		}
		request.Status.Conditions = append(request.Status.Conditions,
			certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue,
				Reason: "Test"})
		approved, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, request.Name, request,
			metav1.UpdateOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if approved.Status.Certificate, err = s.sign(parsed.PublicKey, parsed.Subject, parsed); err != nil {
			t.Error(err)
			continue
		}
		if _, err := client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, approved, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// writeBootstrap writes a kubeconfig with the credentials of cfg.
func writeBootstrap(t *testing.T, cfg *rest.Config, path string) {
	t.Helper()
	out := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: cfg.Host, CertificateAuthority: cfg.CAFile,
			CertificateAuthorityData: cfg.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: cfg.CertFile, ClientCertificateData: cfg.CertData,
			ClientKey: cfg.KeyFile, ClientKeyData: cfg.KeyData}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}
	if err := clientcmd.WriteToFile(out, path); err != nil {
		t.Fatal(err)
	}
}

func TestBootstrapAndRotation(t *testing.T) {
	admin := apitest.Start(t)
	client := kubernetes.NewForConfigOrDie(admin)
	s := newSigner(t, 20*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.run(ctx, t, client) })
	defer wg.Wait()
	defer cancel()
	dir := t.TempDir()
	cfg := BootstrapConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Bootstrap: filepath.Join(dir, "bootstrap"), CertDir: filepath.Join(dir, "pki")}
	writeBootstrap(t, admin, cfg.Bootstrap)
	if err := Bootstrap(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	if len(s.names) != 1 || !strings.HasPrefix(s.names[0], "node-csr-") {
		t.Errorf("requests: %v", s.names)
	}
	own, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if subject := pair.Leaf.Subject; subject.CommonName != "system:node:n1" || len(subject.Organization) != 1 ||
		subject.Organization[0] != "system:nodes" {
		t.Errorf("subject is %v", subject)
	}
	if _, err := os.Stat(filepath.Join(cfg.CertDir, "kubelet-client.key.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary key stays: %v", err)
	}
	// With a certificate in place nothing is requested again.
	if err := Bootstrap(ctx, cfg); err != nil || len(s.names) != 1 {
		t.Errorf("second start: %v, requests %v", err, s.names)
	}

	renewed := make(chan struct{}, 10)
	rotation, err := NewRotation(RotationConfig{Log: cfg.Log, NodeName: "n1", CertDir: cfg.CertDir, Kubeconfig: own,
		Client: func() (kubernetes.Interface, error) { return client, nil }, Changed: func() { renewed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	first := rotation.Current()
	wg.Go(func() {
		if err := rotation.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-renewed
	if second := rotation.Current(); second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) ||
		time.Now().After(first.Leaf.NotAfter) {
		t.Errorf("renewed from %v to %v at %v", first.Leaf.NotAfter, second.Leaf.NotAfter, time.Now())
	}
}

func TestBootstrapNeedsCredentials(t *testing.T) {
	err := Bootstrap(t.Context(), BootstrapConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubeconfig: filepath.Join(t.TempDir(),
		"none")})
	if err == nil || !strings.Contains(err.Error(), "--bootstrap-kubeconfig") {
		t.Errorf("got %v", err)
	}
}

func TestRequestNameIsStable(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, k := range []*ecdsa.PrivateKey{key, key, other} {
		name, err := requestName(k.Public(), clientTemplate("n1"), usages(k))
		if err != nil {
			t.Fatal(err)
		}
		names[name] = true
	}
	if len(names) != 2 {
		t.Errorf("names: %v", names)
	}
}

func TestSelfSignedServing(t *testing.T) {
	dir := t.TempDir()
	cfg := ServingConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", CertDir: dir,
		Kubelet: &kubeletv1beta1.KubeletConfiguration{TLSMinVersion: "VersionTLS13"}}
	for range 2 { // the second start finds the first one's certificate
		serving, err := NewServing(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := serving.TLS.GetCertificate(nil)
		if err != nil || cert.Leaf.VerifyHostname("n1") != nil || serving.TLS.MinVersion != tls.VersionTLS13 {
			t.Errorf("certificate %v, %v", cert, err)
		}
	}
	cfg.Kubelet.TLSCipherSuites = []string{"TLS_NONSENSE"}
	if _, err := NewServing(cfg); err == nil {
		t.Error("an unknown cipher was taken")
	}
}

func TestServingRequestWaitsForAddresses(t *testing.T) {
	if servingTemplate("n1", nil) != nil {
		t.Error("requests without addresses")
	}
	template := servingTemplate("n1", []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: v1.NodeHostName, Address: "n1"}})
	if template == nil || len(template.IPAddresses) != 1 || len(template.DNSNames) != 1 {
		t.Errorf("template is %+v", template)
	}
}

func TestExplainSaysWhatToDo(t *testing.T) {
	for text, want := range map[string]string{"x509: certificate has expired or is not yet valid: current time": "clock",
		"x509: certificate signed by unknown authority": "certificate-authority", "Unauthorized": "token", "other": "other"} {
		if got := Explain(errors.New(text)).Error(); !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
}
