package e2e

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

// room is several machines on one: a control plane here, and nodes in network
// namespaces that hang on a bridge.
type room struct {
	*cluster
	bridge netlink.Link
	subnet string // the first three bytes of its addresses
	nodes  []*member
}

// newRoom starts a control plane that machines can join.
func newRoom(t testing.TB, extra ...string) *room {
	t.Helper()
	subnet := fmt.Sprintf("172.31.%d", os.Getpid()%250)
	r := &room{cluster: newCluster(t, append([]string{"--node-ip", subnet + ".1"}, extra...)...), subnet: subnet}
	r.command = "server"
	r.bridge = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("be%d", os.Getpid())}}
	must(t, netlink.LinkAdd(r.bridge))
	t.Cleanup(func() { must(t, netlink.LinkDel(r.bridge)) })
	addr, err := netlink.ParseAddr(subnet + ".1/24")
	must(t, err)
	must(t, netlink.AddrAdd(r.bridge, addr))
	must(t, netlink.LinkSetUp(r.bridge))
	r.up()
	return r
}

// member is a machine that is a node of the room's cluster.
type member struct {
	room          *room
	name, dir, ip string
	space, link   string // network namespace; this side of its cable
}

// machine adds a machine that has not joined yet. What it runs ends with the
// test.
func (r *room) machine(name string) *member {
	r.t.Helper()
	n := len(r.nodes) + 2
	m := &member{room: r, name: name, ip: fmt.Sprintf("%s.%d", r.subnet, n), space: fmt.Sprintf("be%d-%s", os.Getpid(), name),
		link: fmt.Sprintf("be%d-%d", os.Getpid(), n)}
	r.nodes = append(r.nodes, m)
	dir, err := os.MkdirTemp("", "bn")
	must(r.t, err)
	m.dir = dir
	for _, c := range [][]string{
		{"ip", "netns", "add", m.space},
		{"ip", "link", "add", m.link, "type", "veth", "peer", "name", "eth0", "netns", m.space},
		{"ip", "link", "set", m.link, "master", r.bridge.Attrs().Name, "up"},
		{"ip", "-n", m.space, "link", "set", "lo", "up"},
		{"ip", "-n", m.space, "addr", "add", m.ip + "/24", "dev", "eth0"},
		{"ip", "-n", m.space, "link", "set", "eth0", "up"},
		{"ip", "-n", m.space, "route", "add", "default", "via", r.subnet + ".1"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			r.t.Fatalf("%s: %v\n%s", strings.Join(c, " "), err, out)
		}
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			node := &cluster{t: r.t, dir: m.dir}
			node.dumpLogs()
		}
		if out, err := m.try("down", "--data-dir", m.dir, "--purge"); err != nil {
			r.t.Errorf("purging %s: %v\n%s", name, err, out)
		}
		// The kernel would remove the cable some time after the namespace.
		if link, err := netlink.LinkByName(m.link); err == nil {
			must(r.t, netlink.LinkDel(link))
		}
		must(r.t, netns.DeleteNamed(m.space))
	})
	return m
}

// try runs a berth command on the machine. Only the network is another: the
// mounts of containers must be seen by every command.
func (m *member) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + m.space, filepath.Join(m.room.bin, "berth")},
		args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// join makes the machine a node; args are flags of `berth join`.
func (m *member) join(args ...string) {
	m.room.t.Helper()
	line := m.room.invitation()
	if out, err := m.tryJoin(append(line, args...)...); err != nil {
		m.room.t.Fatalf("joining %s: %v\n%s", m.name, err, out)
	}
}

func (m *member) tryJoin(args ...string) (string, error) {
	return m.try(append([]string{"join", "--detach", "--data-dir", m.dir, "--node-name", m.name}, args...)...)
}

// invitation makes a token; it returns the words after `berth join`.
func (r *room) invitation() []string {
	r.t.Helper()
	words := strings.Fields(r.berth("token", "create", "--data-dir", r.dir))
	if len(words) != 7 || words[0] != "berth" || words[1] != "join" {
		r.t.Fatalf("token create printed %q", words)
	}
	return words[2:]
}

// cut unplugs the machine's cable; heal plugs it in again.
func (m *member) cut()  { m.cable(netlink.LinkSetDown) }
func (m *member) heal() { m.cable(netlink.LinkSetUp) }

func (m *member) cable(set func(netlink.Link) error) {
	m.room.t.Helper()
	link, err := netlink.LinkByName(m.link)
	must(m.room.t, err)
	must(m.room.t, set(link))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
