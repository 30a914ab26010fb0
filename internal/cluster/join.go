package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/agent/certs"
)

// Join is how to get into a cluster for the first time.
type Join struct {
	// Token is a bootstrap token.
	Token string
	// CAHash pins the cluster's CA ("sha256:..."); CAFile
	// is the CA itself. One of them is needed: without it anybody could
	// pose as the server.
	CAHash, CAFile string
}

// completeJoin checks what `berth join` was told.
func (c *Config) completeJoin() error {
	u, err := url.Parse(c.ServerURL)
	switch {
	case c.ServerURL == "":
		return errors.New("which cluster? give its server: berth join https://SERVER:6443 --token TOKEN --ca-hash HASH (`berth token " +
			"create` prints the whole line)")
	case err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("server %q: not an address such as https://10.0.0.1:6443", c.ServerURL)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6443")
	}
	c.ServerURL = "https://" + u.Host
	if id, secret, ok := strings.Cut(c.Join.Token, "."); c.Join.Token != "" && (!ok || len(id) != 6 || len(secret) != 16) {
		return errors.New("--token: not a bootstrap token, which has 6 letters or digits, a dot, and 16 more")
	}
	return nil
}

// connect gets this host into its cluster, or back: credentials of its own
// as a node, and what all hosts of the cluster must know alike.
func (u *up) connect(ctx context.Context) error {
	return u.clock.stage("join", func() (string, error) {
		if err := u.credentials(ctx); err != nil {
			return "", err
		}
		var err error
		if u.client, err = u.memberClient(); err != nil {
			return "", err
		}
		if err := u.learn(ctx); err != nil {
			return "", err
		}
		return u.ServerURL, nil
	})
}

// credentials makes the node's kubeconfig with the bootstrap token, unless it
// is there and valid.
func (u *up) credentials(ctx context.Context) error {
	dir := u.Path("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of keys: %w", err)
	}
	u.files = clusterFiles{CA: pair{Cert: u.Path("pki", "ca.crt")}, AgentKubeconfig: u.Path("pki", "agent.kubeconfig")}
	boot := ""
	if u.Join.Token != "" {
		boot = u.Path("pki", "bootstrap.kubeconfig")
		defer os.Remove(boot)
		if err := u.bootstrapKubeconfig(ctx, boot); err != nil {
			return err
		}
	}
	log, err := u.logs.part("agent")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = certs.Bootstrap(ctx, certs.BootstrapConfig{Log: log, NodeName: u.NodeName, Kubeconfig: u.files.AgentKubeconfig, Bootstrap: boot,
		CertDir: dir})
	if err != nil && boot == "" {
		return fmt.Errorf("%w: give a --token (`berth token create` on the server makes one)", err)
	}
	return err
}

// bootstrapKubeconfig writes credentials that may ask for a certificate only,
// after it made sure that the server is the right one.
func (u *up) bootstrapKubeconfig(ctx context.Context, file string) error {
	ca, err := u.clusterCA(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(u.files.CA.Cert, ca, 0o644); err != nil {
		return fmt.Errorf("writing the cluster's CA: %w", err)
	}
	cfg := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: u.ServerURL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"bootstrap": {Token: u.Join.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"bootstrap": {Cluster: "cluster", AuthInfo: "bootstrap"}},
		CurrentContext: "bootstrap",
	}
	if err := clientcmd.WriteToFile(cfg, file); err != nil {
		return fmt.Errorf("writing the bootstrap credentials: %w", err)
	}
	return nil
}

// clusterCA returns the cluster's CA as PEM.
func (u *up) clusterCA(ctx context.Context) ([]byte, error) {
	if u.Join.CAFile != "" {
		ca, err := os.ReadFile(u.Join.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading --ca-file: %w", err)
		}
		return ca, nil
	}
	if u.Join.CAHash == "" {
		return nil, errors.New("give --ca-hash or --ca-file with --token: without it anybody could pose as the server (`berth token " +
			"create` on the server prints both)")
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return pinned(ctx, strings.TrimPrefix(u.ServerURL, "https://"), u.Join.CAHash)
}

// pinned asks the server for its certificates and returns the CA among
// them whose public key has the hash. Nothing is sent before: a server that is
// not the right one learns nothing.
func pinned(ctx context.Context, address, hash string) ([]byte, error) {
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true}} //nolint:gosec // the chain is checked below, against the pin
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reaching the server: %w", err)
	}
	defer conn.Close()
	tlsConn, ok := conn.(*tls.Conn)
	if !ok {
		return nil, errors.New("reaching the server: not a TLS connection")
	}
	chain := tlsConn.ConnectionState().PeerCertificates
	for _, cert := range chain {
		if spkiHash(cert.RawSubjectPublicKeyInfo) != strings.ToLower(hash) || !cert.IsCA {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(cert)
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			return nil, fmt.Errorf("checking the server's certificate: %w", err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), nil
	}
	return nil, fmt.Errorf("the server at %s does not belong to a CA with --ca-hash %s: it is another cluster, or someone poses "+
		"as it; if the server is not berth's, give --ca-file", address, hash)
}

// learn reads what all hosts of the cluster must know alike, and keeps it.
func (u *up) learn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cm, err := u.client.CoreV1().ConfigMaps(factsNamespace).Get(ctx, factsName, metav1.GetOptions{})
	if err != nil {
		if u.ClusterCIDR != "" {
			u.log.Warn("the API server does not answer: starting with what is known", "err", err)
			return nil
		}
		return certs.Explain(fmt.Errorf("reading the cluster's facts: %w", err))
	}
	var shared shared
	if err := json.Unmarshal([]byte(cm.Data[factsKey]), &shared); err != nil {
		return fmt.Errorf("reading the cluster's facts from ConfigMap %s/%s: %w", factsNamespace, factsName, err)
	}
	u.ClusterCIDR, u.ServiceCIDR, u.ClusterDomain, u.Network = shared.ClusterCIDR, shared.ServiceCIDR, shared.ClusterDomain, shared.Network
	if err := u.validate(); err != nil {
		return fmt.Errorf("reading the cluster's facts from ConfigMap %s/%s: %w", factsNamespace, factsName, err)
	}
	if err := u.checkNetwork(); err != nil {
		return fmt.Errorf("the cluster wants what this host has not: %w", err)
	}
	return u.save()
}

func hashOf(der []byte) (string, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return "", fmt.Errorf("reading the cluster's CA: %w", err)
	}
	return spkiHash(cert.RawSubjectPublicKeyInfo), nil
}
