package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/pki"
)

// pair is a certificate file and its key file.
type pair struct{ Cert, Key string }

// Files are the certificates, keys and kubeconfigs of a cluster, all below
// pki/ but for admin.kubeconfig, which users look for.
type Files struct {
	CA, FrontProxyCA    pair
	API, KubeletClient  pair
	FrontProxyClient    pair
	ServiceAccountKey   string
	ServiceAccountPub   string
	Agent, AgentServing pair
	AdminKubeconfig     string
	AgentKubeconfig     string
	ProxyKubeconfig     string
}

// certificates makes what is missing and renews what nears its end.
func (c *Config) certificates(now time.Time) (f Files, wrote int, err error) {
	dir := c.Path("pki")
	ca, err := pki.EnsureAuthority(dir, "ca", now)
	if err != nil {
		return f, 0, err
	}
	front, err := pki.EnsureAuthority(dir, "front-proxy-ca", now)
	if err != nil {
		return f, 0, err
	}
	f.CA, f.FrontProxyCA = pair{ca.CertFile, ca.KeyFile}, pair{front.CertFile, front.KeyFile}
	if f.ServiceAccountKey, f.ServiceAccountPub, err = pki.EnsureKeyPair(dir, "sa"); err != nil {
		return f, 0, err
	}
	node := net.ParseIP(c.NodeIP)
	local := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, node}
	names := []string{"localhost", c.NodeName, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.ClusterDomain}
	api := slices.Clone(local)
	for _, n := range c.ServerNames {
		if ip := net.ParseIP(n); ip != nil {
			api = append(api, ip)
		} else {
			names = append(names, n)
		}
	}
	services, err := c.serviceCIDRs()
	if err != nil {
		return f, 0, err
	}
	// The Service kubernetes has an address of the main family only.
	service := net.IP(services[0].Addr().Next().AsSlice())
	var proxy, admin pair
	for _, l := range []struct {
		into *pair
		by   *pki.Authority
		name string
		leaf pki.Leaf
	}{
		{&f.API, ca, "apiserver", pki.Leaf{CommonName: "kube-apiserver", Server: true, IPs: append(api, service), Names: names}},
		{&f.KubeletClient, ca, "apiserver-kubelet-client", pki.Leaf{CommonName: kubeletClientUser, Client: true}},
		{&f.FrontProxyClient, front, "front-proxy-client", pki.Leaf{CommonName: "front-proxy-client", Client: true}},
		{&f.Agent, ca, "agent", pki.Leaf{CommonName: "system:node:" + c.NodeName, Organization: []string{"system:nodes"}, Client: true}},
		{&f.AgentServing, ca, "agent-serving", pki.Leaf{CommonName: "system:node:" + c.NodeName, Organization: []string{"system:nodes"}, Server: true, Names: []string{c.NodeName, "localhost"}, IPs: local}},
		{&proxy, ca, "proxy", pki.Leaf{CommonName: "system:kube-proxy", Client: true}},
		{&admin, ca, "admin", pki.Leaf{CommonName: "berth-admin", Organization: []string{"system:masters"}, Client: true}},
	} {
		cert, key, fresh, err := l.by.EnsureLeaf(dir, l.name, l.leaf, now)
		if err != nil {
			return f, wrote, err
		}
		*l.into = pair{cert, key}
		if fresh {
			wrote++
		}
	}
	// A joining node finds the authority it pinned in what the server shows.
	if f.API.Cert, err = pki.WriteChain(dir, "apiserver", ca); err != nil {
		return f, wrote, err
	}
	f.AdminKubeconfig = c.Path("admin.kubeconfig")
	f.AgentKubeconfig = filepath.Join(dir, "agent.kubeconfig")
	f.ProxyKubeconfig = filepath.Join(dir, "proxy.kubeconfig")
	for _, k := range []struct {
		file, user string
		cred       pair
	}{{f.AdminKubeconfig, "admin", admin}, {f.AgentKubeconfig, "agent", f.Agent}, {f.ProxyKubeconfig, "proxy", proxy}} {
		if err := c.kubeconfig(k.file, k.user, ca.CertFile, k.cred); err != nil {
			return f, wrote, err
		}
	}
	return f, wrote, nil
}

// kubeconfig writes a self-contained kubeconfig, so that a copy of the file
// works elsewhere on this machine.
func (c *Config) kubeconfig(file, user, caFile string, cred pair) error {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", file, err)
	}
	cert, err := os.ReadFile(cred.Cert)
	if err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", file, err)
	}
	key, err := os.ReadFile(cred.Key)
	if err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", file, err)
	}
	name := c.Instance()
	cfg := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: fmt.Sprintf("https://127.0.0.1:%d", c.Ports.API), CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
		CurrentContext: name,
	}
	data, err := clientcmd.Write(cfg)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", file, err)
	}
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", file, err)
	}
	return os.Rename(file+".new", file)
}
