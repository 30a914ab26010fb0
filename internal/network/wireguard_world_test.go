package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/internal/testkit/netnstest"
	"github.com/berth-dev/berth/internal/testkit/wgtest"
)

// fortress is an internet whose nodes encrypt, with pods of both families.
// Their devices are in userspace where the kernel has no WireGuard.
type fortress struct {
	*internet
	dir string
	// said is what the nodes logged.
	said *transcript
	runs map[string]func() // stops a node's run
	// stops ends a node's device.
	stops map[string]func()
}

// transcript keeps what is logged, and shows it if the test fails.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
	out  interface{ Write([]byte) (int, error) }
}

func (l *transcript) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	return l.out.Write(b)
}

func (l *transcript) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func newFortress(t *testing.T) *fortress {
	w := &fortress{internet: newInternet(t), dir: t.TempDir(), said: &transcript{out: t.Output()}, runs: map[string]func(){},
		stops: map[string]func(){}}
	for i, name := range []string{"a", "b", "c"} {
		w.must(netnstest.In(w.node[name], func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) }))
		w.ip(w.node[name], fmt.Sprintf("addr add fd00:0:0:%x::1/64 dev br0 nodad", i+1))
		w.ip(w.pod[name], fmt.Sprintf("addr add fd00:0:0:%x::9/64 dev eth0 nodad", i+1), fmt.Sprintf("route add default via fd00:0:0:%x::1",
			i+1))
		n := w.apiNode(name)
		_, err := w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		w.must(err)
	}
	t.Cleanup(func() {
		for _, stop := range w.runs {
			stop()
		}
	})
	return w
}

// step is a part of a test; what fails in it ends that part, and the test.
func (w *fortress) step(name string, f func()) {
	whole := w.t
	defer func() { w.t = whole }()
	if !whole.Run(name, func(t *testing.T) {
		w.t = t
		f()
	}) {
		whole.FailNow()
	}
}

func (w *fortress) apiNode(name string) *corev1.Node {
	i := strings.Index("abc", name)
	n := apiNode(name, []string{"192.0.2.1", "192.0.2.2", "198.51.100.3"}[i], fmt.Sprintf("10.244.%d.0/24", i))
	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("fd00:0:0:%x::/64", i+1))
	return n
}

func (w *fortress) device(name string) Device {
	return Device{Name: fmt.Sprintf("wt%d%s", os.Getpid(), name), Port: 51820, KeyFile: filepath.Join(w.dir, name, "wireguard.key")}
}

func (w *fortress) config(name string, mode Mode) Config {
	cfg := w.internet.config(name, mode)
	cfg.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")}
	cfg.WireGuard, cfg.Client = w.device(name), w.client
	cfg.Informers = informers.NewSharedInformerFactory(w.client, 0) // runs end, and their informers with them
	cfg.Log = slog.New(slog.NewTextHandler(w.said, nil)).With("on", name)
	return cfg
}

// kernelHasIt says whether berth makes devices of the kernel's own here.
func kernelHasIt() bool {
	_, err := netlink.GenlFamilyGet(unix.WG_GENL_NAME)
	return err == nil
}

// equip gives a node the device that its kernel may not have.
func (w *fortress) equip(name string) {
	if kernelHasIt() {
		w.stops[name] = func() { w.ip(w.node[name], "link del "+w.device(name).Name) }
		return
	}
	w.stops[name] = wgtest.New(w.t, w.node[name], w.device(name).Name)
}

func (w *fortress) start(name string, mode Mode) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, w.config(name, mode)) }()
	w.runs[name] = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}

// state reads a node's device.
func (w *fortress) state(name string) guardState {
	w.t.Helper()
	g := guardian{name: w.device(name).Name, space: []netns.NsHandle{w.node[name]}}
	var err error
	if g.client, err = g.open(); err == nil {
		defer g.close()
		var s guardState
		if s, err = g.state(); err == nil {
			return s
		}
	}
	w.t.Logf("device of %s: %v", name, err)
	return guardState{}
}

// untilSix waits until the kernel has looked for duplicates of the addresses
// that it gives links itself: before that neighbours do not find each other.
func (w *fortress) untilSix() {
	w.t.Helper()
	for _, ns := range []map[string]netns.NsHandle{w.node, w.pod} {
		for name, h := range ns {
			w.until("IPv6 on "+name, func() bool { return !strings.Contains(w.ip(h, "-6 addr show"), "tentative") })
		}
	}
}

func (w *fortress) untilPeers(name string, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d peers of %s", n, name), func() bool { return len(w.state(name).Peers) == n })
	w.until("the routes of "+name, func() bool { return strings.Count(w.routes(name), "dev "+w.device(name).Name) == n })
}

// askAgain asks as long as no one answers, within bounds: a device that did not
// get an answer to its first words to a peer, because that did not know it yet,
// says them again after five seconds.
func (w *fortress) askAgain(from netns.NsHandle, to string) (seen string, err error) {
	for range 30 {
		if seen, err = w.ask(from, to); err == nil {
			break
		}
	}
	return seen, err
}

// reached goes from every pod and node to every pod of others, over both
// families.
func (w *fortress) reached(ask func(netns.NsHandle, string) (string, error)) {
	w.t.Helper()
	all := []string{"a", "b", "c"}
	for i, from := range all {
		for j, to := range all {
			if i == j {
				continue
			}
			for _, f := range []struct{ to, pod, node string }{
				{fmt.Sprintf("10.244.%d.9", j), fmt.Sprintf("10.244.%d.9", i), fmt.Sprintf("10.244.%d.0", i)},
				{fmt.Sprintf("fd00:0:0:%x::9", j+1), fmt.Sprintf("fd00:0:0:%x::9", i+1), fmt.Sprintf("fd00:0:0:%x::", i+1)},
			} {
				if seen, err := ask(w.pod[from], f.to); err != nil || seen != f.pod {
					w.t.Errorf("pod of %s -> pod of %s: seen as %q (%v), want %s", from, to, seen, err, f.pod)
				}
				if seen, err := ask(w.node[from], f.to); err != nil || seen != f.node {
					w.t.Errorf("node %s -> pod of %s: seen as %q (%v), want %s", from, to, seen, err, f.node)
				}
			}
		}
	}
}

// wiretap sees what goes over the underlay: the router has all its cables.
type wiretap struct {
	w  *fortress
	fd int
}

func (w *fortress) tap() *wiretap {
	w.t.Helper()
	tap := &wiretap{w: w}
	w.must(netnstest.In(w.router, func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		tap.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all&0xffff)
		if err != nil {
			return err
		}
		return unix.SetsockoptInt(tap.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	}))
	w.t.Cleanup(func() { unix.Close(tap.fd) })
	return tap
}

// captured is what was in the frames since the last time.
type captured struct {
	encrypted int // UDP to port 51820
	words     int // frames with what pods said
	pods      int // frames from or to pods' addresses, outermost
}

func (tap *wiretap) captured() (h captured) {
	tap.w.t.Helper()
	buf := make([]byte, 1<<17)
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")}
	for {
		n, _, err := unix.Recvfrom(tap.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return h
		}
		tap.w.must(err)
		f := buf[:n]
		if bytes.Contains(f, []byte(words)) {
			h.words++
		}
		if n < 54 {
			continue
		}
		var src, dst netip.Addr
		switch binary.BigEndian.Uint16(f[12:]) {
		case unix.ETH_P_IP:
			src, _ = netip.AddrFromSlice(f[26:30])
			dst, _ = netip.AddrFromSlice(f[30:34])
			if f[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[36:]) == 51820 {
				h.encrypted++
			}
		case unix.ETH_P_IPV6:
			src, _ = netip.AddrFromSlice(f[22:38])
			dst, _ = netip.AddrFromSlice(f[38:54])
			if f[20] == unix.IPPROTO_UDP && n >= 58 && binary.BigEndian.Uint16(f[56:]) == 51820 {
				h.encrypted++
			}
		}
		if slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(src) || p.Contains(dst) }) {
			h.pods++
		}
	}
}

// secret says that what was said since went over the underlay encrypted.
func (tap *wiretap) secret() {
	tap.w.t.Helper()
	if h := tap.captured(); h.encrypted == 0 || h.words > 0 || h.pods > 0 {
		tap.w.t.Errorf("on the underlay: %+v: want encrypted ones, and nothing else of pods", h)
	}
}
