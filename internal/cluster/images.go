package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/images"
)

// imageAPI serves the runtime's image store with the agent's API.
func (u *up) imageAPI() http.Handler {
	return images.NewHandler(func(ctx context.Context) (*images.Store, func(), error) { return OpenImages(ctx, u.DataDir) })
}

// OpenImages connects to the image store of the node on dataDir, which may be
// in a containerd of the user's own. The caller ends the connection with close.
func OpenImages(ctx context.Context, dataDir string) (s *images.Store, close func(), err error) {
	dataDir, err = filepath.Abs(dataDir)
	if err != nil {
		return nil, nil, fmt.Errorf("--data-dir: %w", err)
	}
	cfg := &Config{DataDir: dataDir}
	if cfg.Settings, err = cfg.stored(); err != nil {
		return nil, nil, err
	}
	socket, dir := cfg.Layout().Socket(), dataDir
	if cfg.RuntimeEndpoint != "" {
		if socket = trimUnix(cfg.RuntimeEndpoint); onDisk(ownContainerd) {
			dir = ownContainerd
		}
	}
	if !onDisk(socket) {
		return nil, nil, fmt.Errorf("no container runtime runs on %s (%s is missing): start the node with `berth up` or `berth join`, or "+
			"give its --data-dir", dataDir, socket)
	}
	conn, err := containerd.Dial(socket)
	if err != nil {
		return nil, nil, err
	}
	if s, err = images.Open(ctx, conn, socket, dir); err != nil {
		conn.Close()
		if errors.Is(err, os.ErrPermission) || os.Geteuid() != 0 {
			err = fmt.Errorf("%w (root is needed for the runtime's socket)", err)
		}
		return nil, nil, err
	}
	return s, func() { conn.Close() }, nil
}

// ownContainerd is where a containerd of the user's own keeps its images,
// unless it is told otherwise.
const ownContainerd = "/var/lib/containerd"

func onDisk(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// reachTimeout bounds how long a node may take to answer at all; what is sent
// to it takes as long as it takes.
const reachTimeout = 10 * time.Second

// AgentTrustFile is what agents of the cluster on dataDir are believed by.
func AgentTrustFile(dataDir string) string { return filepath.Join(dataDir, "pki", agentTrust) }

// RemoteImages are the image stores behind the agents of nodes: the named ones,
// or all. cfg is the caller's access to the API server, with which the agents
// know the caller too; trust is a file with the CA of agents.
func RemoteImages(ctx context.Context, cfg *rest.Config, trust string, names []string) (map[string]*images.Remote, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	transport, err := agentTransport(cfg, trust)
	if err != nil {
		return nil, err
	}
	byName := map[string]*v1.Node{}
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	if names == nil {
		for name := range byName {
			names = append(names, name)
		}
	}
	out := map[string]*images.Remote{}
	for _, name := range names {
		node := byName[name]
		if node == nil {
			return nil, fmt.Errorf("--node %s: there is no such node (`berth kubectl get nodes` lists them)", name)
		}
		address, err := agentAddress(node)
		if err != nil {
			return nil, err
		}
		out[name] = &images.Remote{Client: &http.Client{Transport: transport}, URL: "https://" + address}
	}
	return out, nil
}

// agentAddress is where a node's agent serves its API.
func agentAddress(node *v1.Node) (string, error) {
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP, v1.NodeHostName} {
		for _, a := range node.Status.Addresses {
			if a.Type == kind && node.Status.DaemonEndpoints.KubeletEndpoint.Port != 0 {
				return net.JoinHostPort(a.Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))), nil
			}
		}
	}
	return "", fmt.Errorf("node %s has no address of its agent in status.addresses and status.daemonEndpoints: it has not reported yet",
		node.Name)
}

// agentTransport shows agents the credentials of cfg, and believes them by trust alone.
func agentTransport(cfg *rest.Config, trust string) (http.RoundTripper, error) {
	pem, err := os.ReadFile(trust)
	if err != nil {
		return nil, fmt.Errorf("reading the CA of the nodes' agents: %w: run this on a server of the cluster, or give a copy of %s of its "+
			"data directory with --agent-ca", err, filepath.Join("pki", agentTrust))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the CA of the nodes' agents: %s holds no certificate in PEM", trust)
	}
	own, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if own != nil {
		settings.Certificates, settings.GetClientCertificate = own.Certificates, own.GetClientCertificate
	}
	bare := rest.CopyConfig(cfg)
	bare.TLSClientConfig = rest.TLSClientConfig{} // what is left are tokens and the like
	return rest.HTTPWrappersForConfig(bare, &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true,
		DialContext: (&net.Dialer{Timeout: reachTimeout}).DialContext, TLSHandshakeTimeout: reachTimeout})
}
