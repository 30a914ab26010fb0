// Package apitest starts a real API server on a real embedded etcd for tests,
// with throwaway certificates, on a free port of the loopback address.
package apitest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
)

// startTimeout bounds the start of etcd and server together; it only decides
// how long a broken start takes to be reported.
const startTimeout = 60 * time.Second

// AdvertisedAddress is the endpoint of the service default/kubernetes. Nothing
// listens there (it is reserved for documentation), but endpoints may not be
// loopback addresses, which is where the server really is.
const AdvertisedAddress = "192.0.2.10"

// Option changes how Start sets the server up.
type Option func(*options)

type options struct {
	dir    string
	etcd   []string
	change func(*api.Config)
	log    *slog.Logger
	beside *Env
}

// WithDir keeps data and certificates in dir instead of a temporary directory,
// so that a second Start finds them again.
func WithDir(dir string) Option { return func(o *options) { o.dir = dir } }

// WithConfig changes the server's configuration before it starts.
func WithConfig(change func(*api.Config)) Option { return func(o *options) { o.change = change } }

// WithEtcd stores in an etcd cluster outside this server.
func WithEtcd(servers ...string) Option { return func(o *options) { o.etcd = servers } }

// Beside makes the server one of the same cluster as another: on its etcd, which
// must be an external one, and with its certificates.
func Beside(other *Env) Option {
	return func(o *options) { o.beside, o.etcd = other, other.etcd }
}

// At lets the server listen where another one, stopped by now, did.
func At(other *Env) Option {
	return WithConfig(func(c *api.Config) { c.Port = other.Server.Address().(*net.TCPAddr).Port })
}

// Env is a running server.
type Env struct {
	// Config is a client with every right (group system:masters).
	Config *rest.Config
	Server *api.Server
	Store  *store.Store
	// Dir holds data (etcd/) and certificates (pki/).
	Dir string
	// ToEtcd and ToReady are how long etcd, and etcd plus server, took.
	ToEtcd, ToReady time.Duration

	ca   *testCA
	etcd []string
	stop func()
}

// Stop ends server and etcd now instead of at the end of the test.
func (e *Env) Stop() { e.stop() }

// As is a client that authenticates as the given user with a certificate.
func (e *Env) As(t testing.TB, user string, groups ...string) *rest.Config {
	t.Helper()
	return e.ca.client(t, e.Config.Host, user, groups)
}

// Between is As with a certificate that is valid in the given time only.
func (e *Env) Between(t testing.TB, from, to time.Time, user string, groups ...string) *rest.Config {
	t.Helper()
	cfg := e.ca.client(t, e.Config.Host, user, groups)
	name := strings.TrimSuffix(strings.TrimPrefix(cfg.CertFile, e.ca.dir+"/"), ".crt")
	e.ca.issue(t, name, newKey(t), &x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups}, NotBefore: from,
		NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return cfg
}

// RenewAgentClient replaces the certificate that the server shows to node
// agents by a new one and returns its serial number.
func (e *Env) RenewAgentClient(t testing.TB) *big.Int {
	t.Helper()
	return e.ca.issueAgentClient(t).SerialNumber
}

// Start starts a server and returns a client configuration with every right.
// It stops at the end of the test.
func Start(t testing.TB, opts ...Option) *rest.Config {
	t.Helper()
	return StartEnv(t, opts...).Config
}

// StartEnv is Start for tests that need more than a client.
func StartEnv(t testing.TB, opts ...Option) *Env {
	t.Helper()
	o := options{log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(&o)
	}
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	e := &Env{Dir: o.dir, etcd: o.etcd}
	if o.beside != nil {
		e.ca = o.beside.ca
	} else {
		e.ca = loadTestCA(t, filepath.Join(o.dir, "pki"))
	}

	ctx, cancel := context.WithCancel(context.Background())
	began := time.Now()
	var err error
	if e.Store, err = store.Start(ctx, store.Config{
		DataDir: filepath.Join(o.dir, "etcd"), Servers: o.etcd, Log: o.log,
	}); err != nil {
		cancel()
		t.Fatalf("starting store: %v", err)
	}
	e.ToEtcd = time.Since(began)
	conf := api.Config{
		Store: e.Store, BindAddress: "127.0.0.1", AdvertiseAddress: net.ParseIP(AdvertisedAddress),
		PKI: e.ca.pki, Log: o.log,
	}
	if o.change != nil {
		o.change(&conf)
	}
	if e.Server, err = api.New(conf); err != nil {
		cancel()
		e.Store.Close()
		t.Fatalf("making API server: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- e.Server.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("running API server: %v", err)
		}
		e.Store.Close()
	})
	t.Cleanup(e.stop)
	select {
	case <-e.Server.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("API server ended while starting: %v", err)
	case <-time.After(startTimeout):
		t.Fatalf("API server is not ready after %s", startTimeout)
	}
	e.ToReady = time.Since(began)
	e.Config = e.ca.client(t, "https://"+e.Server.Address().String(), "admin", []string{"system:masters"})
	return e
}

// testCA is a throwaway CA and the files it signed.
type testCA struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pki  api.PKI
}

func loadTestCA(t testing.TB, dir string) *testCA {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &testCA{dir: dir}
	a.key = newKey(t)
	a.cert = a.issue(t, "ca", a.key, &x509.Certificate{
		Subject: pkix.Name{CommonName: "apitest"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	a.issue(t, "server", newKey(t), &x509.Certificate{
		Subject:     pkix.Name{CommonName: "apitest-server"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	a.issueAgentClient(t)
	// The front proxy has a CA of its own: whom it signs may name
	// any user.
	front := &testCA{dir: dir, key: newKey(t)}
	front.cert = front.issue(t, "front-proxy-ca", front.key, &x509.Certificate{
		Subject: pkix.Name{CommonName: "apitest-front-proxy"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	front.issue(t, "front-proxy-client", newKey(t), &x509.Certificate{
		Subject:     pkix.Name{CommonName: "front-proxy-client"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	// Tokens of an earlier start in the same directory must stay valid.
	if _, err := os.Stat(a.file("sa.key")); err != nil {
		writeKey(t, a.file("sa.key"), newKey(t))
	}
	a.pki = api.PKI{
		ClientCA: a.file("ca.crt"), ServingCert: a.file("server.crt"), ServingKey: a.file("server.key"),
		ServiceAccountKey: a.file("sa.key"),
		KubeletCA:         a.file("ca.crt"),
		FrontProxyCA:      a.file("front-proxy-ca.crt"),
		FrontProxyCert:    a.file("front-proxy-client.crt"), FrontProxyKey: a.file("front-proxy-client.key"),
		KubeletClientCert: a.file("kubelet-client.crt"), KubeletClientKey: a.file("kubelet-client.key"),
	}
	return a
}

func (a *testCA) issueAgentClient(t testing.TB) *x509.Certificate {
	t.Helper()
	return a.issue(t, "kubelet-client", newKey(t), &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver-kubelet-client"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *testCA) file(name string) string { return filepath.Join(a.dir, name) }

// issue signs a certificate and writes it and its key; the first one signs
// itself. One without dates is valid for a day.
func (a *testCA) issue(t testing.TB, name string, key *ecdsa.PrivateKey, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	now := time.Now()
	template.SerialNumber = big.NewInt(now.UnixNano())
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(24*time.Hour)
	}
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	write(t, a.file(name+".crt"), "CERTIFICATE", der)
	writeKey(t, a.file(name+".key"), key)
	return cert
}

func (a *testCA) client(t testing.TB, host, user string, groups []string) *rest.Config {
	t.Helper()
	dir, err := os.MkdirTemp(a.dir, "client-")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(filepath.Base(dir), "client")
	a.issue(t, name, newKey(t), &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return &rest.Config{
		Host: host,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: a.file("ca.crt"), CertFile: a.file(name + ".crt"), KeyFile: a.file(name + ".key"),
		},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeKey(t testing.TB, path string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "EC PRIVATE KEY", der)
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
