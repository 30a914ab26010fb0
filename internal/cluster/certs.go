package cluster

import (
	"bytes"
	"encoding/pem"
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

// clusterFiles are the certificates, keys and kubeconfigs of a cluster, all below
// pki/ but for those of the administrators, which users look for.
type clusterFiles struct {
	CA, FrontProxyCA pair
	// AgentCA signs what agents serve with. It is not published to pods
	// (kube-root-ca.crt): what it signs is no server of the cluster to them.
	// AgentTrust is what the API server believes agents by.
	AgentCA    pair
	AgentTrust string

	API, KubeletClient  pair
	FrontProxyClient    pair
	ServiceAccountKey   string
	ServiceAccountPub   string
	Agent, AgentServing pair
	// AdminKubeconfig is for every day: a group that is bound to cluster-admin.
	// SuperAdminKubeconfig is system:masters, which nothing can revoke; it is
	// for the day on which that binding is gone.
	AdminKubeconfig      string
	SuperAdminKubeconfig string
	AgentKubeconfig      string
	ProxyKubeconfig      string
	// Ends are those of the leaves, soonest first.
	Ends []certificateEnd
}

// certificateEnd says until when a certificate is valid and when it will be
// renewed.
type certificateEnd struct {
	Name    string    `json:"name"`
	End     time.Time `json:"end"`
	Renewal time.Time `json:"renewal"`
}

// leafSpec is a leaf to keep, and where its files go.
type leafSpec struct {
	into *pair
	by   *pki.CA
	name string
	leaf pki.Leaf
}

// certificates makes what is missing and renews what nears its end.
func (c *Config) certificates(now time.Time) (f clusterFiles, wrote int, err error) {
	dir := c.Path("pki")
	used := c.used()
	cas := map[string]*pki.CA{}
	// The cluster's own CA comes first: where it cannot be used, no other is
	// made. Older clusters have no agentCA.
	for _, name := range []string{"ca", "front-proxy-ca", agentCA} {
		used := used
		if name == agentCA {
			used = ""
		}
		ca, err := pki.EnsureCA(dir, name, used, now)
		if err != nil {
			return f, 0, err
		}
		if c.CertificateLife > 0 {
			ca.LeafLife = c.CertificateLife
		}
		cas[name] = ca
	}
	ca, front, agents := cas["ca"], cas["front-proxy-ca"], cas[agentCA]
	f.CA, f.FrontProxyCA, f.AgentCA = files(ca), files(front), files(agents)
	if f.AgentTrust, err = writeAgentTrust(dir, ca, agents, now); err != nil {
		return f, 0, err
	}
	if f.ServiceAccountKey, f.ServiceAccountPub, err = pki.EnsureKeyPair(dir, "sa"); err != nil {
		return f, 0, err
	}
	api, own, err := c.servingLeaves()
	if err != nil {
		return f, 0, err
	}
	client := func(name string, groups ...string) pki.Leaf {
		return pki.Leaf{CommonName: name, Organization: groups, Client: true}
	}
	var proxy, admin, super pair
	for _, l := range []leafSpec{
		{&f.API, ca, "apiserver", api},
		{&f.KubeletClient, ca, "apiserver-kubelet-client", client(kubeletClientUser)},
		{&f.FrontProxyClient, front, "front-proxy-client", client("front-proxy-client")},
		{&f.Agent, ca, "agent", client("system:node:"+c.NodeName, "system:nodes")},
		{&f.AgentServing, agents, "agent-serving", own},
		{&proxy, ca, "proxy", client("system:kube-proxy")},
		{&admin, ca, "admin", client("berth-admin", adminGroup)},
		{&super, ca, "super-admin", client("berth-super-admin", "system:masters")},
	} {
		cert, key, fresh, err := l.by.EnsureLeaf(dir, l.name, l.leaf, now)
		if err != nil {
			return f, wrote, err
		}
		*l.into = pair{cert, key}
		if fresh {
			wrote++
		}
		end, err := endOf(l.name, cert)
		if err != nil {
			return f, wrote, err
		}
		f.Ends = append(f.Ends, end)
	}
	slices.SortFunc(f.Ends, func(a, b certificateEnd) int { return a.Renewal.Compare(b.Renewal) })
	// A joining node finds the CA it pinned in what the server shows.
	if f.API.Cert, err = pki.WriteChain(dir, "apiserver", ca); err != nil {
		return f, wrote, err
	}
	f.AdminKubeconfig, f.SuperAdminKubeconfig = c.Path("admin.kubeconfig"), c.Path("super-admin.kubeconfig")
	f.AgentKubeconfig = filepath.Join(dir, "agent.kubeconfig")
	f.ProxyKubeconfig = filepath.Join(dir, "proxy.kubeconfig")
	for _, k := range []struct {
		file, user string
		cred       pair
	}{
		{f.AdminKubeconfig, "admin", admin}, {f.SuperAdminKubeconfig, "super-admin", super},
		{f.AgentKubeconfig, "agent", f.Agent}, {f.ProxyKubeconfig, "proxy", proxy},
	} {
		if err := c.kubeconfig(k.file, k.user, ca.CertFile, k.cred); err != nil {
			return f, wrote, err
		}
	}
	return f, wrote, nil
}

const (
	agentCA    = "agent-ca"
	adminGroup = "berth:cluster-admins"
)

func files(a *pki.CA) pair { return pair{a.CertFile, a.KeyFile} }

// used says what shows that the data directory holds a cluster already, whose
// clients believe its CA; empty if nothing does.
func (c *Config) used() string {
	for _, file := range []string{c.Path("etcd", "member-data"), c.Path("admin.kubeconfig")} {
		if _, err := os.Stat(file); err == nil {
			return file + " is there"
		}
	}
	return ""
}

// servingLeaves are the certificates of the API server and of this host's
// own agent.
func (c *Config) servingLeaves() (api, agent pki.Leaf, err error) {
	local := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(c.NodeIP)}
	api = pki.Leaf{CommonName: "kube-apiserver", Server: true, IPs: slices.Clone(local), Names: append(c.serverNames(), c.NodeName)}
	for _, n := range c.ServerNames {
		if ip := net.ParseIP(n); ip != nil {
			api.IPs = append(api.IPs, ip)
		} else {
			api.Names = append(api.Names, n)
		}
	}
	services, err := c.serviceCIDRs()
	if err != nil {
		return api, agent, err
	}
	// The Service kubernetes has an address of the main family only.
	api.IPs = append(api.IPs, net.IP(services[0].Addr().Next().AsSlice()))
	agent = pki.Leaf{CommonName: "system:node:" + c.NodeName, Organization: []string{"system:nodes"}, Server: true,
		Names: []string{c.NodeName, "localhost"}, IPs: local}
	return api, agent, nil
}

// serverNames are the names every API server has, beside those of its host.
func (c *Config) serverNames() []string {
	return []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.ClusterDomain}
}

func endOf(name, certFile string) (certificateEnd, error) {
	cert, err := pki.ReadCertificate(certFile)
	if err != nil {
		return certificateEnd{}, err
	}
	return certificateEnd{Name: name, End: cert.NotAfter, Renewal: pki.RenewAt(cert)}, nil
}

// oldServing is how long agents of a cluster that had one CA for everything may
// go on with serving certificates of it: the longest life those can have.
const oldServing = 365 * 24 * time.Hour

// agentTrust is the name of the bundle below.
const agentTrust = "agent-trust.crt"

// writeAgentTrust writes the bundle that the API server believes agents by: the
// agents' CA, and in a cluster that is older than that its general CA until all
// that it signed for agents has ended.
func writeAgentTrust(dir string, ca, agents *pki.CA, now time.Time) (string, error) {
	file := filepath.Join(dir, agentTrust)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: agents.Cert.Raw})
	made := agents.Cert.NotBefore
	if made.Sub(ca.Cert.NotBefore) > time.Hour && now.Before(made.Add(oldServing)) {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw})...)
	}
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, bundle) {
		return file, nil
	}
	return file, pki.WriteFile(file, bundle, 0o644)
}

// kubeconfig writes a self-contained kubeconfig, so that a copy of the file
// works elsewhere on this host.
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
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: fmt.Sprintf("https://127.0.0.1:%d", c.Ports.API),
			CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
		CurrentContext: name,
	}
	data, err := clientcmd.Write(cfg)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", file, err)
	}
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return pki.WriteFile(file, data, 0o600)
}
