package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
)

// hear listens to all frames of a link.
func (w *internet) capture(ns netns.NsHandle, link string) (fd int) {
	w.t.Helper()
	proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	w.must(netnstest.In(ns, func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: l.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	}))
	w.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// inject sends a frame with a word in it into a tunnel of node a.
func (w *internet) inject(from netns.NsHandle, vni int, mac, word string) {
	w.t.Helper()
	to, err := net.ParseMAC(mac)
	w.must(err)
	b := append([]byte{8, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}, to...)
	b = append(b, 2, 0, 0, 0, 0, 1, 0x88, 0xb5)
	b = append(b, fmt.Sprintf("%-60s", word)...)
	w.must(netnstest.In(from, func() error {
		c, err := net.Dial("udp", fmt.Sprintf("192.0.2.1:%d", Port))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(b)
		return err
	}))
}

// heard reads frames until one with the last word, and says whether one had word.
func (w *internet) captured(fd int, word, last string) (found bool) {
	w.t.Helper()
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		w.must(err)
		switch got := string(buf[:n]); {
		case strings.Contains(got, word):
			found = true
		case strings.Contains(got, last):
			return found
		}
	}
}

// TestOnlyNodesSendIntoTheTunnel: what comes from an address of no node does not
// leave the tunnel, what a node sends does; a tunnel of another party at the same
// port is not touched, and clean-up takes the fence away.
func TestOnlyNodesSendIntoTheTunnel(t *testing.T) {
	w := newInternet(t)
	a := w.node["a"]
	cfg := w.config("a", VXLAN)
	m, err := cfg.hostNetwork()
	w.must(err)
	defer m.close()
	nodes := []clusterNode{nodeOf(apiNode("a", "192.0.2.1", "10.244.0.0/24")), nodeOf(apiNode("b", "192.0.2.2", "10.244.1.0/24"))}
	links, err := m.links()
	w.must(err)
	p := decide(cfg.Mode, "a", nodes, links, linkNames{Tunnel: "vx-test", VNI: 77})
	r := &runner{cfg: cfg}
	w.must(r.fence(p.Tunnel, nodes))
	_, err = m.apply(p)
	w.must(err)
	w.ip(a, "link add vx-other type vxlan id 99 dstport 4789 local 192.0.2.1 nolearning", "link set vx-other up")
	ours, others := w.capture(a, "vx-test"), w.capture(a, "vx-other")

	w.inject(w.router, 77, macOf("a"), "forged")
	w.inject(w.node["b"], 77, macOf("a"), "honest")
	if w.captured(ours, "forged", "honest") {
		t.Error("somebody who is no node sends into the tunnel")
	}
	w.inject(w.router, 99, "ff:ff:ff:ff:ff:ff", "stranger")
	w.inject(w.router, 99, "ff:ff:ff:ff:ff:ff", "over")
	if !w.captured(others, "stranger", "over") {
		t.Error("a tunnel of somebody else is cut")
	}

	// A node that comes later is let in, one that went is not.
	nodes[1] = nodeOf(apiNode("r", "192.0.2.254", "10.244.3.0/24"))
	w.must(r.fence(p.Tunnel, nodes))
	w.inject(w.node["b"], 77, macOf("a"), "gone")
	w.inject(w.router, 77, macOf("a"), "come")
	if w.captured(ours, "gone", "come") {
		t.Error("a node that is gone sends into the tunnel")
	}
	w.must(cfg.cleanup())
	tables, err := cfg.tables()
	w.must(err)
	defer tables.Close()
	for _, f := range families {
		names, err := tables.Tables(f)
		w.must(err)
		for _, name := range names {
			if strings.HasSuffix(name, "-tunnel") {
				t.Errorf("clean-up leaves table %s", name)
			}
		}
	}
}
