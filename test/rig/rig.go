// Package rig runs a node's parts one by one, as somebody does who replaces a
// single part of an existing cluster: a control plane, a container runtime
// with its CNI configuration, and `berth agent`, `berth proxy` and `berth
// controllers` with kubeconfigs and configuration files, each a process of its
// own.
package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/pki"
)

// Where the ports of parts lie in a rig's range; the server's are before them.
const (
	controllersPort = 7 + iota
	proxyHealthzPort
	proxyMetricsPort
	agentPorts
)

// Rig is what was started. Close ends and removes all of it.
type Rig struct {
	// Bin holds the built binaries; Dir is a directory of its own.
	Bin, Dir string
	// Ports is the first of 20 free ports.
	Ports  int
	Admin  *rest.Config
	Client kubernetes.Interface
	// Runtime is nil before StartRuntime.
	Runtime *containerd.Supervisor
	parts   []*Part
	agents  int
	served  bool
	proxied bool
}

// Agent is a `berth agent`.
type Agent struct {
	*Part
	Name, RootDir string
	// Port serves its API, HealthzPort its health on loopback.
	Port, HealthzPort int
}

// Manifests is the agent's directory of static pods.
func (a *Agent) Manifests() string { return filepath.Join(a.RootDir, "manifests") }

// New prepares a rig. The directory's name is short: sockets go below it.
func New(bin string, ports int) (*Rig, error) {
	if bin == "" {
		return nil, errors.New("BERTH_BIN names no directory with built binaries: make build")
	}
	abs, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "br")
	if err != nil {
		return nil, err
	}
	return &Rig{Bin: abs, Dir: dir, Ports: ports}, os.Mkdir(filepath.Join(dir, "logs"), 0o755)
}

// ServerDir is the data directory of the server.
func (r *Rig) ServerDir() string { return filepath.Join(r.Dir, "server") }
func (r *Rig) instance() string  { return host.Instance(r.Dir) }

// Berth runs a berth command to its end.
func (r *Rig) Berth(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.Bin, "berth"), args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// StartServer starts the control plane.
func (r *Rig) StartServer(args ...string) error {
	all := append([]string{"server", "--detach", "--data-dir", r.ServerDir(), "--ports-from", strconv.Itoa(r.Ports)}, args...)
	if _, err := r.Berth(all...); err != nil {
		return err
	}
	r.served = true
	var err error
	if r.Admin, err = clientcmd.BuildConfigFromFlags("", filepath.Join(r.ServerDir(), "admin.kubeconfig")); err != nil {
		return err
	}
	r.Admin.QPS = -1
	r.Client, err = kubernetes.NewForConfig(r.Admin)
	return err
}

// link is the rig's bridge.
func (r *Rig) link() string { return "br" + strings.TrimPrefix(r.instance(), "berth-") }

// StartRuntime starts the bundled containerd with a bridge network and the
// bundled images.
func (r *Rig) StartRuntime(ctx context.Context, podCIDR string) error {
	dir := filepath.Join(r.Dir, "rt")
	layout := containerd.Layout{DataDir: dir, Instance: r.instance()}
	for _, d := range []string{layout.CNIConfDir(), filepath.Join(dir, "run")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// The network is the one that `berth up` makes.
	cni := network.CNIOptions{Name: "rig", Bridge: r.link(), DataDir: filepath.Join(r.Dir, "leases"), OneStep: true}
	if err := network.WriteCNI(layout.CNIConfDir(), []string{podCIDR}, cni); err != nil {
		return err
	}
	facts, err := host.Probe("/")
	if err != nil {
		return err
	}
	chosen, _, err := containerd.ChooseOCIRuntime(ctx, filepath.Join(r.Dir, "trial.json"), "/"+r.instance(), facts.BootID)
	if err != nil {
		return err
	}
	r.Runtime = livetest.Supervisor(r.Bin, dir, r.instance(), chosen.Path)
	r.Runtime.RestrictOOM, r.Runtime.Hugetlb = !facts.LowersOOMScore, facts.Hugetlb
	r.Runtime.LogFile = filepath.Join(r.Dir, "logs", "containerd.log")
	return livetest.Start(ctx, r.Runtime)
}

// configuration is the agent's; more is appended to it.
const configuration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: %d
healthzPort: %d
cgroupRoot: /%s
failSwapOn: false
failCgroupV1: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%s
podLogsDir: %s
staticPodPath: %s
authentication:
  x509: {clientCAFile: %s}
%s
`

// StartAgent starts `berth agent` for node name; more is added to its
// KubeletConfiguration, args to its flags.
func (r *Rig) StartAgent(name, more string, args ...string) (*Agent, error) {
	a := &Agent{Name: name, RootDir: filepath.Join(r.Dir, name), Port: r.Ports + agentPorts + 2*r.agents,
		HealthzPort: r.Ports + agentPorts + 1 + 2*r.agents}
	r.agents++
	kubeconfig, err := r.nodeKubeconfig(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(a.Manifests(), 0o755); err != nil {
		return nil, err
	}
	if !strings.Contains(more, "evictionHard:") {
		// The machine's disk is not what is tested: by default a node with less
		// than 15 % left takes no pods.
		more = "evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}\n" + more
	}
	text := fmt.Sprintf(configuration, a.Port, a.HealthzPort, r.instance(), r.Runtime.Socket(), filepath.Join(a.RootDir, "pod-logs"),
		a.Manifests(),
		filepath.Join(r.ServerDir(), "pki", "ca.crt"), more)
	config := filepath.Join(a.RootDir, "config.yaml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	pki := r.pkiDir(name)
	a.Part, err = r.start(name, append([]string{"agent", "--kubeconfig", kubeconfig, "--config", config, "--root-dir", a.RootDir,
		"--cert-dir", a.RootDir, "--hostname-override", name,
		"--tls-cert-file", filepath.Join(pki, "serving.crt"), "--tls-private-key-file", filepath.Join(pki, "serving.key")}, args...)...)
	return a, err
}

// nodeKubeconfig issues a node's credentials from the cluster's authority, and
// a serving certificate beside them.
func (r *Rig) nodeKubeconfig(name string) (string, error) {
	node := pki.Leaf{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}, Client: true}
	file, err := r.kubeconfig(name, node)
	if err != nil {
		return "", err
	}
	node.Client, node.Server, node.Names, node.IPs = false, true, []string{name}, []net.IP{net.IPv4(127, 0, 0, 1)}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, addr := range addrs {
			if ip, ok := addr.(*net.IPNet); ok {
				node.IPs = append(node.IPs, ip.IP)
			}
		}
	}
	_, _, _, err = r.issue("agent-ca", name, "serving", node)
	return file, err
}

// kubeconfig issues a client certificate and writes a kubeconfig for it.
func (r *Rig) kubeconfig(name string, leaf pki.Leaf) (string, error) {
	ca, cert, key, err := r.issue("ca", name, "client", leaf)
	if err != nil {
		return "", err
	}
	file := filepath.Join(r.pkiDir(name), "kubeconfig")
	return file, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: r.Admin.Host, CertificateAuthority: ca.CertFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"n": {ClientCertificate: cert, ClientKey: key}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "n"}},
		CurrentContext: "x",
	}, file)
}

func (r *Rig) pkiDir(name string) string { return filepath.Join(r.Dir, "pki-"+name) }

// issue has an authority of the cluster sign a certificate.
func (r *Rig) issue(authority, name, kind string, leaf pki.Leaf) (ca *pki.CA, cert, key string, err error) {
	now := time.Now()
	if ca, err = pki.EnsureCA(filepath.Join(r.ServerDir(), "pki"), authority, "", now); err != nil {
		return nil, "", "", err
	}
	if err := os.MkdirAll(r.pkiDir(name), 0o700); err != nil {
		return nil, "", "", err
	}
	cert, key, _, err = ca.EnsureLeaf(r.pkiDir(name), kind, leaf, now)
	return ca, cert, key, err
}

// WaitNode returns when the node is Ready.
func (r *Rig) WaitNode(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := r.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if n, ok := e.Object.(*v1.Node); ok {
			for _, c := range n.Status.Conditions {
				if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("node %s did not become Ready: %w", name, ctx.Err())
}

// Close stops everything and removes it.
func (r *Rig) Close() error {
	for _, p := range slices.Backward(r.parts) {
		p.Stop()
	}
	var errs []error
	if r.proxied {
		_, err := r.Berth("proxy", "--cleanup", "--instance", r.instance())
		errs = append(errs, err)
	}
	if r.Runtime != nil {
		errs = append(errs, r.stopRuntime())
	}
	if r.served {
		_, err := r.Berth("down", "--purge", "--data-dir", r.ServerDir())
		errs = append(errs, err)
	}
	errs = append(errs, unlink(r.Dir), unmountBelow(r.Dir), os.RemoveAll(r.Dir))
	return errors.Join(errs...)
}
