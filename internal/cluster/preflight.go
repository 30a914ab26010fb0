package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/cluster/host"
	"github.com/berth-dev/berth/internal/proxy"
)

// minFree is the space below which images and the store would soon fail.
const minFree = 256 << 20

// Check looks whether a start would pass its first stage; it changes nothing.
func (c *Config) Check() error {
	_, err := c.preflight()
	return err
}

// preflight checks the host before anything is changed. Each error says
// what to do about it.
func (c *Config) preflight() (host.Facts, error) {
	facts, err := host.Probe("/")
	if err != nil {
		return facts, err
	}
	if !c.Role.node() {
		if err := c.checkSpace(); err != nil {
			return facts, err
		}
		return facts, c.checkPorts()
	}
	if !facts.Root {
		return facts, errors.New("root is needed to start containers: run it as root, for example with sudo")
	}
	if missing := facts.Missing(); len(missing) > 0 {
		return facts, fmt.Errorf("cgroup controller %s is missing (%s layout): enable it in the kernel or delegate it to this host",
			strings.Join(missing, ", "), facts.Cgroups)
	}
	if err := proxy.CheckKernel(slog.New(slog.DiscardHandler)); err != nil {
		return facts, fmt.Errorf("this host cannot serve Services: %w", err)
	}
	if err := c.checkSpace(); err != nil {
		return facts, err
	}
	if c.RuntimeEndpoint == "" {
		for _, name := range []string{"containerd", "containerd-shim-runc-v2", "berth-net", "bridge", "host-local", "portmap"} {
			if _, err := os.Stat(filepath.Join(c.BundleDir, name)); err != nil {
				return facts, fmt.Errorf("the runtime bundle in %s has no %s: run `make build`, or use a runtime that is already there "+
					"with --container-runtime-endpoint", c.BundleDir, name)
			}
		}
	}
	if err := c.checkPorts(); err != nil {
		return facts, err
	}
	return facts, c.checkNetwork()
}

func (c *Config) checkSpace() error {
	dir := c.DataDir
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("looking at the space in %s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree {
		return fmt.Errorf("%s has %d MiB free, at least %d are needed: make room or choose another --data-dir", dir, free>>20, minFree>>20)
	}
	return nil
}

func (c *Config) checkPorts() error {
	for _, p := range []struct {
		flag, ip string
		port     int
		here     bool
	}{
		{"--api-port", "", c.Ports.API, c.Role.control()},
		{"--agent-port", "", c.Ports.Agent, c.Role.node()},
		{"--agent-healthz-port", "127.0.0.1", c.Ports.AgentHealthz, c.Role.node()},
		{"--proxy-healthz-port", "", c.Ports.ProxyHealthz, c.Role.node()},
		{"--proxy-metrics-port", "127.0.0.1", c.Ports.ProxyMetrics, c.Role.node()},
		{"--metrics-port", "127.0.0.1", c.Ports.Metrics, true},
	} {
		if !p.here {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.ip, fmt.Sprint(p.port)))
		if err != nil {
			return fmt.Errorf("port %d is taken (%w): stop what listens there, or choose another with %s or --ports-from", p.port, err,
				p.flag)
		}
		l.Close()
	}
	return c.checkDNSPort()
}

// checkDNSPort wants the DNS port free for both transports.
func (c *Config) checkDNSPort() error {
	addr := net.JoinHostPort(c.NodeIP, fmt.Sprint(c.Ports.DNS))
	taken := func(transport string, err error) error {
		return fmt.Errorf("port %d is taken for DNS over %s (%w): stop what listens there, or choose another with --dns-port or "+
			"--ports-from", c.Ports.DNS, transport, err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return taken("TCP", err)
	}
	l.Close()
	p, err := net.ListenPacket("udp", addr)
	if err != nil {
		return taken("UDP", err)
	}
	return p.Close()
}
