package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/keyutil"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// ServingConfig says where the serving certificate comes from.
type ServingConfig struct {
	Log      *slog.Logger
	NodeName string
	CertDir  string
	Kubelet  *kubeletv1beta1.KubeletConfiguration
	// Client requests certificates (serverTLSBootstrap); nil if there is no
	// API server.
	Client kubernetes.Interface
	// Addresses are the node's, which go into requests; none means not known
	// yet.
	Addresses func() []v1.NodeAddress
	// Failures counts requests that failed (serverTLSBootstrap); may be nil.
	Failures certificate.Counter
}

// serving is the serving certificate with what keeps it current.
type serving struct {
	TLS *tls.Config
	// Issued is closed once there is a certificate; nil where there is one from
	// the start.
	Issued <-chan struct{}
	// Run keeps the certificate current until the context ends.
	Run func(context.Context) error
}

// NewServing sets up TLS for the agent's API: the configured files, else a
// certificate requested from the API server, else a self-signed one.
func NewServing(cfg ServingConfig) (*serving, error) {
	base, err := tlsSettings(cfg.Kubelet)
	if err != nil {
		return nil, err
	}
	switch {
	case cfg.Kubelet.TLSCertFile != "":
		return fromFiles(base, cfg.Kubelet.TLSCertFile, cfg.Kubelet.TLSPrivateKeyFile)
	case cfg.Kubelet.ServerTLSBootstrap && cfg.Client != nil:
		return requested(cfg, base)
	}
	certFile, keyFile := filepath.Join(cfg.CertDir, "kubelet.crt"), filepath.Join(cfg.CertDir, "kubelet.key")
	if err := selfSigned(cfg.NodeName, certFile, keyFile); err != nil {
		return nil, err
	}
	return fromFiles(base, certFile, keyFile)
}

// tlsSettings translates names of versions and ciphers.
func tlsSettings(cfg *kubeletv1beta1.KubeletConfiguration) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLSMinVersion != "" {
		version, err := cliflag.TLSVersion(cfg.TLSMinVersion)
		if err != nil {
			return nil, fmt.Errorf("reading tlsMinVersion: %w", err)
		}
		out.MinVersion = version
	}
	if len(cfg.TLSCipherSuites) > 0 {
		suites, err := cliflag.TLSCipherSuites(cfg.TLSCipherSuites)
		if err != nil {
			return nil, fmt.Errorf("reading tlsCipherSuites: %w", err)
		}
		out.CipherSuites = suites
	}
	for _, curve := range cfg.TLSCurvePreferences {
		out.CurvePreferences = append(out.CurvePreferences, tls.CurveID(curve))
	}
	return out, nil
}

// fromFiles serves what the files hold now.
func fromFiles(base *tls.Config, certFile, keyFile string) (*serving, error) {
	pair, err := WatchPair("serving", certFile, keyFile, func() {})
	if err != nil {
		return nil, err
	}
	base.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Current(), nil }
	return &serving{TLS: base, Run: pair.Run}, nil
}

// pair is a certificate with its key in files that another party renews.
type pair struct {
	content *dynamiccertificates.DynamicCertKeyPairContent
	current atomic.Pointer[tls.Certificate]
}

// WatchPair reads a pair of files; purpose names it in errors, such as
// "serving". While Run runs, changed is called after each new pair. A pair that
// is broken keeps the last good one.
func WatchPair(purpose, certFile, keyFile string, changed func()) (*pair, error) {
	content, err := dynamiccertificates.NewDynamicServingContentFromFiles(purpose+"-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("loading the %s certificate: %w", purpose, err)
	}
	p := &pair{content: content}
	if err := p.load(); err != nil {
		return nil, fmt.Errorf("loading the %s certificate: %w", purpose, err)
	}
	content.AddListener(listener(func() {
		if p.load() == nil {
			changed()
		}
	}))
	return p, nil
}

func (p *pair) load() error {
	pair, err := tls.X509KeyPair(p.content.CurrentCertKeyContent())
	if err == nil {
		p.current.Store(&pair)
	}
	return err
}

// Current is the last good pair.
func (p *pair) Current() *tls.Certificate { return p.current.Load() }

// Run follows the files until the context ends.
func (p *pair) Run(ctx context.Context) error {
	p.content.Run(ctx, 1)
	return nil
}

type listener func()

// Enqueue is called when the files changed.
func (l listener) Enqueue() { l() }

// selfSigned makes a certificate for the node's name unless there is one.
func selfSigned(nodeName, certFile, keyFile string) error {
	if ok, err := certutil.CanReadCertAndKey(certFile, keyFile); err != nil || ok {
		return err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(nodeName, nil, []string{nodeName})
	if err != nil {
		return fmt.Errorf("making a self-signed serving certificate: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o755); err != nil {
		return fmt.Errorf("making a self-signed serving certificate: %w", err)
	}
	if err := certutil.WriteCert(certFile, cert); err != nil {
		return fmt.Errorf("making a self-signed serving certificate: %w", err)
	}
	return keyutil.WriteKey(keyFile, key)
}

// requested serves a certificate that the API server issues. Until it is
// approved handshakes fail: the agent does not fall back to a certificate that
// no one can check.
func requested(cfg ServingConfig, base *tls.Config) (*serving, error) {
	store, err := certificate.NewFileStore(servingPrefix, cfg.CertDir, cfg.CertDir, "", "")
	if err != nil {
		return nil, fmt.Errorf("opening --cert-dir: %w", err)
	}
	issued := newIssuance(store)
	manager, err := certificate.NewManager(&certificate.Config{
		Name: "kubelet-serving", CertificateRenewFailure: cfg.Failures,
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return cfg.Client, nil },
		GetTemplate:      func() *x509.CertificateRequest { return servingTemplate(cfg.NodeName, cfg.Addresses()) },
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        servingUsages,
		CertificateStore: issued,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the serving certificate: %w", err)
	}
	base.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if current := manager.Current(); current != nil {
			return current, nil
		}
		return nil, errors.New("no serving certificate yet: approve the request of this node (kubectl get csr)")
	}
	return &serving{TLS: base, Issued: issued.done, Run: func(ctx context.Context) error {
		manager.Start()
		<-ctx.Done()
		manager.Stop()
		return nil
	}}, nil
}

// issuance is a store of certificates that closes done once it has one that is valid.
type issuance struct {
	certificate.Store
	once sync.Once
	done chan struct{}
}

func newIssuance(store certificate.Store) *issuance {
	i := &issuance{Store: store, done: make(chan struct{})}
	if have, err := store.Current(); err == nil && have.Leaf != nil && time.Now().Before(have.Leaf.NotAfter) {
		i.once.Do(func() { close(i.done) })
	}
	return i
}

// Update stores a certificate that was issued.
func (i *issuance) Update(cert, key []byte) (*tls.Certificate, error) {
	stored, err := i.Store.Update(cert, key)
	if err == nil {
		i.once.Do(func() { close(i.done) })
	}
	return stored, err
}

func servingUsages(key any) []certificatesv1.KeyUsage {
	list := slices.Clone(usages(key))
	list[len(list)-1] = certificatesv1.UsageServerAuth
	return list
}

// servingTemplate is nil, which makes the manager wait, until the node has
// addresses.
func servingTemplate(nodeName string, addresses []v1.NodeAddress) *x509.CertificateRequest {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}}
	for _, address := range addresses {
		switch address.Type {
		case v1.NodeHostName, v1.NodeInternalDNS, v1.NodeExternalDNS:
			if net.ParseIP(address.Address) == nil && !slices.Contains(template.DNSNames, address.Address) {
				template.DNSNames = append(template.DNSNames, address.Address)
			}
		case v1.NodeInternalIP, v1.NodeExternalIP:
			if ip := net.ParseIP(address.Address); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			}
		}
	}
	if len(template.IPAddresses) == 0 {
		return nil
	}
	return template
}
