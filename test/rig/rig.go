// Package rig runs a node's parts one by one, as somebody does who replaces a
// single part of an existing cluster: a control plane, a container runtime
// with its CNI configuration, and `berth agent` with a kubeconfig and a
// KubeletConfiguration, each a process of its own.
package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/cluster/containerd"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/pki"
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
	agents  []*Agent
	served  bool
}

// Agent is a running `berth agent`.
type Agent struct {
	Name, RootDir, LogFile string
	// Port serves its API, HealthzPort its health on loopback.
	Port, HealthzPort int
	Process           *os.Process
	ended             chan struct{}
}

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
	return &Rig{Bin: abs, Dir: dir, Ports: ports}, err
}

func (r *Rig) serverDir() string { return filepath.Join(r.Dir, "server") }
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
	all := append([]string{"server", "--detach", "--data-dir", r.serverDir(), "--ports-from", strconv.Itoa(r.Ports)}, args...)
	if _, err := r.Berth(all...); err != nil {
		return err
	}
	r.served = true
	var err error
	if r.Admin, err = clientcmd.BuildConfigFromFlags("", filepath.Join(r.serverDir(), "admin.kubeconfig")); err != nil {
		return err
	}
	r.Admin.QPS = -1
	r.Client, err = kubernetes.NewForConfig(r.Admin)
	return err
}

// bridge is the CNI configuration that an administrator would have written.
const bridge = `{"cniVersion":"1.0.0","name":"rig","plugins":[
{"type":"bridge","bridge":"%s","isGateway":true,"ipMasq":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"%s","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
{"type":"portmap","capabilities":{"portMappings":true}}]}`

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
	conf := fmt.Sprintf(bridge, r.link(), filepath.Join(r.Dir, "leases"), podCIDR)
	if err := os.WriteFile(filepath.Join(layout.CNIConfDir(), "10-rig.conflist"), []byte(conf), 0o644); err != nil {
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
	n := len(r.agents)
	a := &Agent{Name: name, RootDir: filepath.Join(r.Dir, name), LogFile: filepath.Join(r.Dir, name+".log"), Port: r.Ports + 10 + 2*n, HealthzPort: r.Ports + 11 + 2*n, ended: make(chan struct{})}
	kubeconfig, err := r.nodeKubeconfig(name)
	if err != nil {
		return nil, err
	}
	manifests := filepath.Join(a.RootDir, "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(configuration, a.Port, a.HealthzPort, r.instance(), r.Runtime.Socket(), filepath.Join(a.RootDir, "pod-logs"), manifests,
		filepath.Join(r.serverDir(), "pki", "ca.crt"), more)
	config := filepath.Join(a.RootDir, "config.yaml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	pki := filepath.Join(r.Dir, "pki-"+name)
	out, err := os.Create(a.LogFile)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args = append([]string{"agent", "--kubeconfig", kubeconfig, "--config", config, "--root-dir", a.RootDir, "--cert-dir", a.RootDir, "--hostname-override", name,
		"--tls-cert-file", filepath.Join(pki, "serving.crt"), "--tls-private-key-file", filepath.Join(pki, "serving.key")}, args...)
	cmd := exec.Command(filepath.Join(r.Bin, "berth"), args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a.Process = cmd.Process
	go func() {
		cmd.Wait() //nolint:errcheck // how it ended is in its log
		close(a.ended)
	}()
	r.agents = append(r.agents, a)
	return a, nil
}

// nodeKubeconfig issues credentials for a node from the cluster's authority.
func (r *Rig) nodeKubeconfig(name string) (string, error) {
	now := time.Now()
	ca, err := pki.EnsureAuthority(filepath.Join(r.serverDir(), "pki"), "ca", now)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.Dir, "pki-"+name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	cert, key, _, err := ca.EnsureLeaf(dir, "client", pki.Leaf{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}, Client: true}, now)
	if err != nil {
		return "", err
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1)}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, addr := range addrs {
			if ip, ok := addr.(*net.IPNet); ok {
				ips = append(ips, ip.IP)
			}
		}
	}
	if _, _, _, err := ca.EnsureLeaf(dir, "serving", pki.Leaf{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}, Server: true, Names: []string{name}, IPs: ips}, now); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kubeconfig")
	return file, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: r.Admin.Host, CertificateAuthority: ca.CertFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"n": {ClientCertificate: cert, ClientKey: key}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "n"}},
		CurrentContext: "x",
	}, file)
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

// Stop ends the agent as a service manager would.
func (a *Agent) Stop() {
	select {
	case <-a.ended:
		return
	default:
	}
	a.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-a.ended:
	case <-time.After(20 * time.Second):
		a.Process.Kill() //nolint:errcheck // it may have ended
		<-a.ended
	}
}

// Close stops everything and removes it.
func (r *Rig) Close() error {
	for _, a := range r.agents {
		a.Stop()
	}
	var errs []error
	if r.Runtime != nil {
		errs = append(errs, r.clear(), r.Runtime.Stop(context.Background()))
		exec.Command("ip", "link", "del", r.link()).Run() //nolint:errcheck // there is none before the first pod
		errs = append(errs, host.RemoveCgroup("/sys/fs/cgroup", "/"+r.instance()))
	}
	if r.served {
		_, err := r.Berth("down", "--purge", "--data-dir", r.serverDir())
		errs = append(errs, err)
	}
	errs = append(errs, unmountBelow(r.Dir), os.RemoveAll(r.Dir))
	return errors.Join(errs...)
}
