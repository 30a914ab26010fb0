package kit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Hosts is several hosts on one: a control plane here, and nodes in network
// namespaces that hang on a bridge.
type Hosts struct {
	*Cluster
	bridge netlink.Link
	Subnet string // the first three bytes of its addresses
	Nodes  []*Host
}

// NewHosts starts a control plane that hosts can join.
func NewHosts(t testing.TB, extra ...string) *Hosts {
	t.Helper()
	subnet := fmt.Sprintf("172.31.%d", os.Getpid()%250)
	r := &Hosts{Cluster: NewCluster(t, append([]string{"--node-ip", subnet + ".1"}, extra...)...), Subnet: subnet}
	r.Command = "server"
	r.bridge = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("be%d", os.Getpid())}}
	Must(t, netlink.LinkAdd(r.bridge))
	t.Cleanup(func() { Must(t, netlink.LinkDel(r.bridge)) })
	addr, err := netlink.ParseAddr(subnet + ".1/24")
	Must(t, err)
	Must(t, netlink.AddrAdd(r.bridge, addr))
	Must(t, netlink.LinkSetUp(r.bridge))
	r.Up()
	return r
}

// Host is a host that is a node of the cluster.
type Host struct {
	Cluster       *Hosts
	Name, Dir, IP string
	Netns, Link   string // network namespace; this side of its cable
}

// AddHost adds a host that has not joined yet. What it runs ends with the
// test.
func (r *Hosts) AddHost(name string) *Host {
	r.T.Helper()
	n := len(r.Nodes) + 2
	m := &Host{Cluster: r, Name: name, IP: fmt.Sprintf("%s.%d", r.Subnet, n), Netns: fmt.Sprintf("be%d-%s", os.Getpid(), name),
		Link: fmt.Sprintf("be%d-%d", os.Getpid(), n)}
	r.Nodes = append(r.Nodes, m)
	dir, err := os.MkdirTemp("", "bn")
	Must(r.T, err)
	m.Dir = dir
	for _, c := range [][]string{
		{"ip", "netns", "add", m.Netns},
		{"ip", "link", "add", m.Link, "type", "veth", "peer", "name", "eth0", "netns", m.Netns},
		{"ip", "link", "set", m.Link, "master", r.bridge.Attrs().Name, "up"},
		{"ip", "-n", m.Netns, "link", "set", "lo", "up"},
		{"ip", "-n", m.Netns, "addr", "add", m.IP + "/24", "dev", "eth0"},
		{"ip", "-n", m.Netns, "link", "set", "eth0", "up"},
		{"ip", "-n", m.Netns, "route", "add", "default", "via", r.Subnet + ".1"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			r.T.Fatalf("%s: %v\n%s", strings.Join(c, " "), err, out)
		}
	}
	r.T.Cleanup(func() {
		if r.T.Failed() {
			node := &Cluster{T: r.T, Dir: m.Dir}
			node.dumpLogs()
		}
		if out, err := m.Try("down", "--data-dir", m.Dir, "--purge"); err != nil {
			r.T.Errorf("purging %s: %v\n%s", name, err, out)
		}
		// The kernel would remove the cable some time after the namespace.
		if link, err := netlink.LinkByName(m.Link); err == nil {
			Must(r.T, netlink.LinkDel(link))
		}
		Must(r.T, netns.DeleteNamed(m.Netns))
	})
	return m
}

// Try runs a berth command on the host. Only the network is another: the
// mounts of containers must be seen by every command.
func (m *Host) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + m.Netns, filepath.Join(m.Cluster.Bin, "berth")},
		args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Join makes the host a node; args are flags of `berth join`.
func (m *Host) Join(args ...string) {
	m.Cluster.T.Helper()
	line := m.Cluster.JoinArgs()
	if out, err := m.TryJoin(append(line, args...)...); err != nil {
		m.Cluster.T.Fatalf("joining %s: %v\n%s", m.Name, err, out)
	}
}

// TryJoin runs `berth join` on the host and returns its output.
func (m *Host) TryJoin(args ...string) (string, error) {
	return m.Try(append([]string{"join", "--detach", "--data-dir", m.Dir, "--node-name", m.Name}, args...)...)
}

// JoinArgs makes a token; it returns the words after `berth join`.
func (r *Hosts) JoinArgs() []string {
	r.T.Helper()
	words := strings.Fields(r.Berth("token", "create", "--data-dir", r.Dir))
	if len(words) != 7 || words[0] != "berth" || words[1] != "join" {
		r.T.Fatalf("token create printed %q", words)
	}
	return words[2:]
}
