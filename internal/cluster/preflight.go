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
	"github.com/berth-dev/berth/internal/cluster/hostcheck"
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
	for _, r := range c.requirements(facts) {
		if err := r.check(); err != nil {
			return facts, err
		}
	}
	return facts, nil
}

// requirement is one thing without which a start fails.
type requirement struct {
	name  string
	check func() error
}

// requirements are what a start of this role looks at, in order.
func (c *Config) requirements(facts host.Facts) (all []requirement) {
	if c.Role.node() {
		all = append(all, requirement{"root", func() error {
			if !facts.Root {
				return errors.New("root is needed to start containers: run it as root, for example with sudo")
			}
			return nil
		}}, requirement{"cgroups", func() error {
			if missing := facts.Missing(); len(missing) > 0 {
				return fmt.Errorf("cgroup controller %s is missing (%s layout): enable it in the kernel or delegate it to this host",
					strings.Join(missing, ", "), facts.Cgroups)
			}
			return nil
		}}, requirement{"nftables", func() error {
			if err := proxy.CheckKernel(slog.New(slog.DiscardHandler)); err != nil {
				return fmt.Errorf("this host cannot serve Services: %w", err)
			}
			return nil
		}})
	}
	all = append(all, requirement{"space", c.checkSpace})
	if c.Role.node() {
		all = append(all, requirement{"bundle", c.checkBundle})
	}
	all = append(all, c.portsFree()...)
	if c.Role.node() {
		all = append(all, requirement{"network", c.checkNetwork})
	}
	return all
}

// Unmet are all requirements of a start that this host does not fulfil.
func (c *Config) Unmet() (out []hostcheck.Failure) {
	facts, err := host.Probe("/")
	if err != nil {
		return []hostcheck.Failure{{Name: "host", Message: err.Error()}}
	}
	for _, r := range c.requirements(facts) {
		if err := r.check(); err != nil {
			out = append(out, hostcheck.Failure{Name: r.name, Message: err.Error()})
		}
	}
	return out
}

// checkBundle wants the programs of the bundled runtime.
func (c *Config) checkBundle() error {
	if c.RuntimeEndpoint != "" {
		return nil
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "berth-net", "bridge", "host-local", "portmap"} {
		if _, err := os.Stat(filepath.Join(c.BundleDir, name)); err != nil {
			return fmt.Errorf("the runtime bundle in %s has no %s: run `make build`, or use a runtime that is already there "+
				"with --container-runtime-endpoint", c.BundleDir, name)
		}
	}
	return nil
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

// portsFree wants every port of this role, each by itself.
func (c *Config) portsFree() (all []requirement) {
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
		all = append(all, requirement{fmt.Sprintf("port %d", p.port), func() error {
			l, err := net.Listen("tcp", net.JoinHostPort(p.ip, fmt.Sprint(p.port)))
			if err != nil {
				return fmt.Errorf("port %d is taken (%w): stop what listens there, or choose another with %s or --ports-from", p.port, err,
					p.flag)
			}
			return l.Close()
		}})
	}
	return append(all, requirement{fmt.Sprintf("port %d", c.Ports.DNS), c.checkDNSPort})
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
