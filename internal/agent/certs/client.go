package certs

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

const (
	clientPrefix  = "kubelet-client"
	servingPrefix = "kubelet-server"
	// bootstrapMax is how long a bootstrap waits for its approval before it
	// asks again from the beginning.
	bootstrapMax = 15 * time.Minute
)

// BootstrapConfig says how to get the first client certificate.
type BootstrapConfig struct {
	Log      *slog.Logger
	NodeName string
	// Kubeconfig is written; Bootstrap is read: its credentials may request
	// certificates only.
	Kubeconfig, Bootstrap string
	CertDir               string
}

// Bootstrap makes sure that the kubeconfig exists and its certificate has not
// expired, requesting a certificate with the bootstrap credentials if need be.
// It waits for the approval until the context ends. A restart reuses key and
// request, so that no second request piles up.
func Bootstrap(ctx context.Context, cfg BootstrapConfig) error {
	unusable := usable(cfg.Kubeconfig)
	if unusable == nil {
		return nil
	}
	if cfg.Bootstrap == "" {
		return fmt.Errorf("reading --kubeconfig %s: %w; and there is no --bootstrap-kubeconfig to get a new one with", cfg.Kubeconfig,
			unusable)
	}
	boot, err := clientcmd.BuildConfigFromFlags("", cfg.Bootstrap)
	if err != nil {
		return fmt.Errorf("reading --bootstrap-kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(boot)
	if err != nil {
		return fmt.Errorf("using --bootstrap-kubeconfig: %w", err)
	}
	store, err := certificate.NewFileStore(clientPrefix, cfg.CertDir, cfg.CertDir, "", "")
	if err != nil {
		return fmt.Errorf("opening --cert-dir: %w", err)
	}
	keyFile := filepath.Join(cfg.CertDir, clientPrefix+".key.tmp")
	keyPEM, _, err := keyutil.LoadOrGenerateKeyFile(keyFile)
	if err != nil {
		return fmt.Errorf("making the client key: %w", err)
	}
	cert, err := request(ctx, cfg, client, keyPEM)
	if err != nil {
		return Explain(fmt.Errorf("requesting a client certificate for node %q: %w", cfg.NodeName, err))
	}
	if _, err := store.Update(cert, keyPEM); err != nil {
		return fmt.Errorf("storing the client certificate: %w", err)
	}
	if err := writeKubeconfig(boot, cfg.Kubeconfig, filepath.Join(cfg.CertDir, clientPrefix+"-current.pem")); err != nil {
		return err
	}
	if err := os.Remove(keyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the temporary key: %w", err)
	}
	cfg.Log.Info("got a client certificate", "node", cfg.NodeName)
	return nil
}

// usable says why a kubeconfig cannot be used as it is; nil if it can. One
// without client certificate (a token) always can.
func usable(path string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("%w: it must name a server, its certificate-authority and this node's credentials", err)
	}
	data := cfg.CertData
	if cfg.CertFile != "" {
		if data, err = os.ReadFile(cfg.CertFile); err != nil {
			return err
		}
	}
	if len(data) == 0 {
		return nil
	}
	certs, err := certutil.ParseCertsPEM(data)
	switch {
	case err != nil:
		return fmt.Errorf("its client certificate: %w", err)
	case !time.Now().Before(certs[0].NotAfter):
		return errors.New(Refused(certs[0], nil, time.Now()))
	}
	return nil
}

// request asks for the certificate until it is issued or the context ends.
func request(ctx context.Context, cfg BootstrapConfig, client kubernetes.Interface, keyPEM []byte) ([]byte, error) {
	parsed, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, errors.New("the client key cannot sign")
	}
	template := clientTemplate(cfg.NodeName)
	data, err := certutil.MakeCSRFromTemplate(key, template)
	if err != nil {
		return nil, err
	}
	name, err := requestName(key.Public(), template, usages(key))
	if err != nil {
		return nil, err
	}
	for {
		name, uid, err := csr.RequestCertificateWithContext(ctx, client, data, name, certificatesv1.KubeAPIServerClientKubeletSignerName,
			nil, usages(key), key)
		if err != nil {
			return nil, err
		}
		cfg.Log.Info("waiting for the certificate request to be approved", "request", name)
		waiting, cancel := context.WithTimeout(ctx, bootstrapMax)
		cert, err := csr.WaitForCertificate(waiting, client, name, uid)
		cancel()
		if err == nil {
			return cert, nil
		}
		if ctx.Err() != nil || waiting.Err() == nil {
			return nil, err
		}
	}
}

func clientTemplate(nodeName string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}}
}

// usages of a client certificate; only RSA keys encipher keys.
func usages(key any) []certificatesv1.KeyUsage {
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	}
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageClientAuth}
}

// requestName is the same for the same key and subject, so that a restarted
// bootstrap finds its request again.
func requestName(public crypto.PublicKey, template *x509.CertificateRequest, usages []certificatesv1.KeyUsage) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("naming the certificate request: %w", err)
	}
	hash := sha512.New512_256()
	fmt.Fprintf(hash, "%q %q %q ", template.Subject.CommonName, template.Subject.Organization, usages)
	hash.Write(der)
	return "node-csr-" + hex.EncodeToString(hash.Sum(nil)), nil
}

// writeKubeconfig writes the node's own kubeconfig, readable by root only.
func writeKubeconfig(boot *rest.Config, path, pem string) error {
	ca := boot.CAFile
	var data []byte
	if ca == "" {
		data = boot.CAData
	}
	out := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"default": {Server: boot.Host, TLSServerName: boot.ServerName,
			InsecureSkipTLSVerify: boot.Insecure, CertificateAuthority: ca, CertificateAuthorityData: data}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"node": {ClientCertificate: pem, ClientKey: pem}},
		Contexts:       map[string]*clientcmdapi.Context{"default": {Cluster: "default", AuthInfo: "node"}},
		CurrentContext: "default",
	}
	if err := clientcmd.WriteToFile(out, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}

// RotationConfig says how to renew the client certificate.
type RotationConfig struct {
	Log      *slog.Logger
	NodeName string
	CertDir  string
	// Kubeconfig's certificate is where rotation begins.
	Kubeconfig *rest.Config
	// Client makes the client that requests with; it should use the current
	// certificate.
	Client func() (kubernetes.Interface, error)
	// Changed is called with each new certificate.
	Changed func()
	// Failures counts renewals that failed; may be nil.
	Failures certificate.Counter
}

// rotation renews the client certificate at 70 to 90 % of its lifetime.
type rotation struct {
	cfg     RotationConfig
	manager certificate.Manager
}

// NewRotation returns a Rotation that has read the current certificate.
func NewRotation(cfg RotationConfig) (*rotation, error) {
	store, err := certificate.NewFileStore(clientPrefix, cfg.CertDir, cfg.CertDir, cfg.Kubeconfig.CertFile, cfg.Kubeconfig.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("opening --cert-dir: %w", err)
	}
	if err := forgetExpired(store, cfg.Kubeconfig.CertData); err != nil {
		return nil, err
	}
	r := &rotation{cfg: cfg}
	r.manager, err = certificate.NewManager(&certificate.Config{
		Name:                    "kubelet-client",
		ClientsetFn:             func(*tls.Certificate) (kubernetes.Interface, error) { return cfg.Client() },
		GetTemplate:             func() *x509.CertificateRequest { return clientTemplate(cfg.NodeName) },
		SignerName:              certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:               usages,
		CertificateStore:        store,
		BootstrapCertificatePEM: cfg.Kubeconfig.CertData,
		BootstrapKeyPEM:         cfg.Kubeconfig.KeyData,
		CertificateRenewFailure: cfg.Failures,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up certificate rotation: %w", err)
	}
	return r, nil
}

// forgetExpired removes a stored certificate that has expired where the
// kubeconfig holds a good one: another party renewed that while the agent did
// not run, and the stored one would be taken before it.
func forgetExpired(store certificate.FileStore, kubeconfig []byte) error {
	stored, err := store.Current()
	if err != nil || stored.Leaf == nil || time.Now().Before(stored.Leaf.NotAfter) {
		return nil //nolint:nilerr // there is none to forget
	}
	given, err := certutil.ParseCertsPEM(kubeconfig)
	if err != nil || !time.Now().Before(given[0].NotAfter) {
		return nil //nolint:nilerr // there is no better one
	}
	if err := os.Remove(store.CurrentPath()); err != nil {
		return fmt.Errorf("removing an expired client certificate: %w", err)
	}
	return nil
}

// Current is the certificate to use now, nil if there is none.
func (r *rotation) Current() *tls.Certificate { return r.manager.Current() }

// expiryPatience is how long an agent goes on with an expired certificate: its
// renewal may be just behind an API server that comes up.
const expiryPatience = 5 * time.Minute

// Run renews until the context ends. It ends with an error when the
// certificate has been expired for some minutes: the process cannot do
// anything any more and should be started again, to bootstrap again.
func (r *rotation) Run(ctx context.Context) error {
	r.manager.Start()
	defer r.manager.Stop()
	last := r.manager.Current()
	var invalidSince time.Time
	for {
		now, current := time.Now(), r.manager.Current()
		if current != last && current != nil {
			last = current
			r.cfg.Log.Info("renewed the client certificate", "until", current.Leaf.NotAfter)
			r.cfg.Changed()
		}
		switch {
		case current != nil && current.Leaf != nil && now.Before(current.Leaf.NotAfter):
			invalidSince = time.Time{}
		case invalidSince.IsZero():
			invalidSince = now
		case now.Sub(invalidSince) > expiryPatience:
			return errors.New("renewing the client certificate: it expired and the API server issued no new one; check the clock, " +
				"approve the request (kubectl get csr), or bootstrap again")
		}
		timer := time.NewTimer(pause(now, current))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// pause is a small part of the certificate's lifetime, within bounds: the
// library that renews tells no one when it did.
func pause(now time.Time, current *tls.Certificate) time.Duration {
	if current == nil || current.Leaf == nil {
		return time.Second
	}
	left := current.Leaf.NotAfter.Sub(now)
	return min(max(left/100, time.Second), time.Minute)
}
