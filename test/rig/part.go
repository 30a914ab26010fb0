package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/pki"
)

// Part is a berth command that runs until it is stopped.
type Part struct {
	LogFile string
	Process *os.Process

	exe   string
	args  []string
	ended chan struct{}
}

// start starts a command that the rig ends with itself.
func (r *Rig) start(name string, args ...string) (*Part, error) {
	p := &Part{LogFile: filepath.Join(r.Dir, "logs", name+".log"), exe: filepath.Join(r.Bin, "berth"), args: args}
	if err := p.Start(); err != nil {
		return nil, err
	}
	r.parts = append(r.parts, p)
	return p, nil
}

// Start starts a part that ended again, with the same command line.
func (p *Part) Start() error {
	out, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(p.exe, p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	p.Process, p.ended = cmd.Process, ended
	go func() {
		cmd.Wait() //nolint:errcheck // how it ended is in its log
		close(ended)
	}()
	return nil
}

// Stop ends the part as a service manager would.
func (p *Part) Stop() {
	select {
	case <-p.ended:
		return
	default:
	}
	p.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.Kill()
	}
}

// PID reads a process id from a file.
func PID(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Kill ends the part as a crash would.
func (p *Part) Kill() {
	p.Process.Kill() //nolint:errcheck // it may have ended
	<-p.ended
}

// proxyConfiguration leaves the host's conntrack settings alone.
const proxyConfiguration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
clusterCIDR: %s
healthzBindAddress: 127.0.0.1:%d
metricsBindAddress: 127.0.0.1:%d
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// Proxy is a `berth proxy`.
type Proxy struct {
	*Part
	// HealthzPort and MetricsPort are on loopback.
	HealthzPort, MetricsPort int
}

// StartProxy starts `berth proxy` for a node whose pods have addresses of
// podCIDR.
func (r *Rig) StartProxy(node, podCIDR string) (*Proxy, error) {
	kubeconfig, err := r.kubeconfig("proxy", pki.Leaf{CommonName: "system:kube-proxy", Client: true})
	if err != nil {
		return nil, err
	}
	p := &Proxy{HealthzPort: r.Ports + proxyHealthzPort, MetricsPort: r.Ports + proxyMetricsPort}
	file := filepath.Join(r.Dir, "proxy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, proxyConfiguration, kubeconfig, node, podCIDR, p.HealthzPort, p.MetricsPort),
		0o644); err != nil {
		return nil, err
	}
	r.proxied = true
	p.Part, err = r.start("proxy", "proxy", "--config", file, "--instance", r.instance(), "--socket", filepath.Join(r.Dir, "proxy.sock"))
	return p, err
}

// Controllers are a `berth controllers`; SecurePort is on loopback.
type Controllers struct {
	*Part
	SecurePort int
}

// StartControllers starts `berth controllers` in the place of a controller
// manager: its user, its lease, and an account for each controller.
func (r *Rig) StartControllers(clusterCIDR string, args ...string) (*Controllers, error) {
	kubeconfig, err := r.kubeconfig("controllers", pki.Leaf{CommonName: "system:kube-controller-manager", Client: true})
	if err != nil {
		return nil, err
	}
	c := &Controllers{SecurePort: r.Ports + controllersPort}
	c.Part, err = r.start("controllers", append([]string{"controllers", "--kubeconfig", kubeconfig, "--authentication-kubeconfig",
		kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--leader-elect-resource-name", "kube-controller-manager", "--use-service-account-credentials", "--allocate-node-cidrs",
		"--cluster-cidr", clusterCIDR,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(c.SecurePort), "--data-dir", filepath.Join(r.Dir, "controllers")},
		args...)...)
	return c, err
}
