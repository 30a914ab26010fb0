package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// keyOf is a node's key in tests; nameOf tells whose a key is.
func keyOf(name string) wgtypes.Key {
	k := wgtypes.Key{}
	copy(k[:], "key of "+name)
	nameOf[k] = name
	return k
}

var nameOf = map[wgtypes.Key]string{}

// guarded is a node that has published its key.
func guarded(name, at string, pods ...string) clusterNode {
	n := node(name, at, pods...)
	n.Published = published{keyOf(name), 51820}.String()
	return n
}

func guardNames(self string) linkNames {
	return linkNames{Tunnel: "vx", VNI: 7, Guard: "wg", published: published{keyOf(self), 51820},
		Cluster: []netip.Prefix{cidr("10.244.0.0/16"),
			cidr("fd00::/48")}}
}

func TestDecideWireGuard(t *testing.T) {
	const six = "fd00:0:0:1::/64"
	a, b, c := guarded("a", "192.0.2.1", "10.244.0.0/24", "fd00::/64"), guarded("b", "192.0.2.2", "10.244.1.0/24", six),
		guarded("c", "198.51.100.3", "10.244.2.0/24")
	with := func(n clusterNode, f func(*clusterNode)) clusterNode { f(&n); return n }
	const closed = "unreachable 10.244.0.0/16\n"
	const last = "unreachable fd00::/48\n"
	const own = "guard wg port 51820 mtu 1440 [10.244.0.0 fd00::]\n"
	const toB = "peer b at 192.0.2.2:51820 [10.244.1.0/24 " + six + "] every 0s\n"
	for _, tc := range []struct {
		name  string
		nodes []clusterNode
		links []link
		want  string
	}{
		{"alone", []clusterNode{a}, lan, closed + last + own},
		{"not there yet", []clusterNode{b}, lan, ""},
		{"without an address", []clusterNode{{Name: "a", PodCIDRs: a.PodCIDRs}, b}, lan, ""},
		{"a neighbour", []clusterNode{a, b}, lan, closed + "10.244.1.0/24 dev wg\n" + last + six + " dev wg\n" + own + toB},
		{"beyond a router", []clusterNode{c, b, a}, lan, closed + "10.244.1.0/24 dev wg\n10.244.2.0/24 dev wg\n" + last + six +
			" dev wg\n" + own +
			toB +
			"peer c at 198.51.100.3:51820 [10.244.2.0/24] every 0s\n"},
		{"a port of its own", []clusterNode{a, with(c, func(n *clusterNode) { n.Published = published{keyOf("c"), 7007}.String() })}, lan,
			closed + "10.244.2.0/24 dev wg\n" + last + own + "peer c at 198.51.100.3:7007 [10.244.2.0/24] every 0s\n"},
		{"no key yet", []clusterNode{a, with(c, func(n *clusterNode) { n.Published = "" })}, lan,
			closed + last + own +
				"problem: node c has no WireGuard key yet (annotation berth.dev/wireguard): nothing is sent to its pods until it runs in " +
				"mode wireguard too\n"},
		{"no key but nonsense", []clusterNode{a, with(c, func(n *clusterNode) { n.Published = `{"publicKey":"AAAA","port":1}` })}, lan,
			closed + last + own +
				"problem: node c has a WireGuard key that cannot be read, so nothing is sent to its pods: annotation " +
				"berth.dev/wireguard: publicKey: wgtypes: incorrect key size: 3\n"},
		{"the key of another", []clusterNode{a, b, with(c, func(n *clusterNode) { n.Published = b.Published })}, lan,
			closed + "10.244.1.0/24 dev wg\n" +
				last + six + " dev wg\n" + own + toB +
				"problem: node c has the WireGuard key of node b, so nothing is sent to its pods: was a data directory copied? " +
				"Remove the key file of one and start it again\n"},
		{"our own key", []clusterNode{a, with(c, func(n *clusterNode) { n.Published = a.Published })}, lan, closed + last + own +
			"problem: node c has the WireGuard key of node a, so nothing is sent to its pods: was a data directory copied? Remove the " +
			"key file of one and start it again\n"},
		{"two nodes with one range", []clusterNode{a, guarded("z", "192.0.2.9", "10.244.1.0/24"), b}, lan,
			closed + "10.244.1.0/24 dev wg\n" +
				last + six + " dev wg\n" + own + toB +
				"peer z at 192.0.2.9:51820 [] every 0s\n"},
		{"a node with our range", []clusterNode{a, guarded("z", "192.0.2.9", "10.244.0.0/24")}, lan,
			closed + last + own + "peer z at 192.0.2.9:51820 [] every 0s\n"},
		{"behind an address that a router translates", []clusterNode{a, b},
			[]link{{Name: "eth0", MTU: 1500, Addrs: []netip.Prefix{cidr("10.0.0.5/24")}}},
			closed + "10.244.1.0/24 dev wg\n" + last + six + " dev wg\n" + own + strings.Replace(toB, "0s", "25s", 1)},
		{"a peer of the other family", []clusterNode{with(a, func(n *clusterNode) { n.IPs = append(n.IPs, ip("2001:db8::1")) }),
			guarded("b", "2001:db8::2", "10.244.1.0/24")},
			[]link{{Name: "eth0", MTU: 1500, Addrs: []netip.Prefix{cidr("192.0.2.1/24"), cidr("2001:db8::1/64")}}},
			closed + "10.244.1.0/24 dev wg\n" + last + strings.Replace(own, "1440", "1420", 1) +
				"peer b at [2001:db8::2]:51820 [10.244.1.0/24] every 0s\n"},
		{"no common family", []clusterNode{a, guarded("b", "2001:db8::2", "10.244.1.0/24")}, lan,
			closed + last + own + "problem: node b ([2001:db8::2]) has no address of a family that this node ([192.0.2.1]) has\n"},
		{"a node without pods", []clusterNode{a, guarded("b", "192.0.2.2")}, lan, closed + last + own},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := text(decide(WireGuard, "a", tc.nodes, tc.links, guardNames("a"))); got != tc.want {
				t.Errorf("got:\n%swant:\n%s", got, tc.want)
			}
		})
	}
}

func TestPublished(t *testing.T) {
	want := published{keyOf("a"), 51821}
	if got, err := parsePublished(want.String()); err != nil || got != want {
		t.Errorf("%s is read as %v (%v)", want, got, err)
	}
	zero := published{Port: 1}
	for _, bad := range []string{"x", "{}", zero.String(), published{keyOf("a"), 0}.String(), published{keyOf("a"), 65536}.String(),
		`{"publicKey":"?","port":1}`} {
		if got, err := parsePublished(bad); err == nil || !strings.Contains(err.Error(), Annotation) {
			t.Errorf("%s is read as %v (%v)", bad, got, err)
		}
	}
}

// apply is what a device does with changes, as wg(8) tells it: a range goes to
// whom it was given last.
func (s guardState) apply(t *testing.T, c guardChanges, want guardState) guardState {
	if c.Key {
		s.PublicKey = want.PublicKey
	}
	if c.Port {
		s.Port = want.Port
	}
	peers := slices.Clone(s.Peers)
	for _, ch := range c.Peers {
		i := slices.IndexFunc(peers, func(p peer) bool { return p.PublicKey == ch.PublicKey })
		if ch.New != (i < 0) {
			t.Fatalf("%s: new is %t", nameOf[ch.PublicKey], ch.New)
		}
		if ch.Remove {
			peers = slices.Delete(peers, i, i+1)
			continue
		}
		if i < 0 {
			peers, i = append(peers, peer{PublicKey: ch.PublicKey}), len(peers)
		}
		if ch.Endpoint != nil {
			peers[i].Endpoint = *ch.Endpoint
		}
		if ch.Keepalive != nil {
			peers[i].Keepalive = *ch.Keepalive
		}
		if ch.Allowed != nil {
			for j := range peers {
				peers[j].Allowed = slices.DeleteFunc(slices.Clone(peers[j].Allowed), func(p netip.Prefix) bool {
					return j == i ||
						slices.Contains(*ch.Allowed, p)
				})
			}
			peers[i].Allowed = slices.Clone(*ch.Allowed)
		}
	}
	s.Peers = peers
	return s
}

func (s guardState) text() string {
	var lines []string
	for _, p := range s.Peers {
		var allowed []string
		for _, a := range p.Allowed {
			allowed = append(allowed, a.String())
		}
		slices.Sort(allowed)
		lines = append(lines, fmt.Sprint(nameOf[p.PublicKey], p.Endpoint, allowed, p.Keepalive))
	}
	slices.Sort(lines)
	return fmt.Sprint(s.published, lines)
}

func randomState(r *rand.Rand) guardState {
	s := guardState{published: published{keyOf([]string{"a", "A"}[r.IntN(2)]), 51820 + r.IntN(2)}}
	owner := r.Perm(8)
	for i := range 6 {
		if r.IntN(3) == 0 {
			continue
		}
		p := peer{PublicKey: keyOf(fmt.Sprint("n", i)), Keepalive: time.Duration(r.IntN(2)) * keepalive}
		if r.IntN(8) > 0 {
			p.Endpoint = netip.AddrPortFrom(ip(fmt.Sprintf("192.0.2.%d", r.IntN(3))), 51820)
		}
		for c := range owner {
			if owner[c] == i {
				p.Allowed = append(p.Allowed, cidr(fmt.Sprintf("10.244.%d.0/24", c)))
			}
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}

// TestChangesOfDevices: from any state to any other, with nothing said of what
// is right already, and nothing at all the second time.
func TestChangesOfDevices(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 9))
		have, want := randomState(r), randomState(r)
		for i := range want.Peers {
			want.Peers[i].Endpoint = netip.AddrPortFrom(ip(fmt.Sprintf("192.0.2.%d", r.IntN(3))), 51820)
		}
		changes := want.Changes(have, nil)
		for _, ch := range changes.Peers {
			h := slices.IndexFunc(have.Peers, func(p peer) bool { return p.PublicKey == ch.PublicKey })
			w := slices.IndexFunc(want.Peers, func(p peer) bool { return p.PublicKey == ch.PublicKey })
			if h >= 0 && w >= 0 && (have.Peers[h].Endpoint == want.Peers[w].Endpoint && ch.Endpoint != nil ||
				have.Peers[h].Keepalive == want.Peers[w].Keepalive && ch.Keepalive != nil || sameSet(have.Peers[h].Allowed,
				want.Peers[w].Allowed) && ch.Allowed != nil) {
				t.Fatalf("seed %d: %s is told what it has", seed, nameOf[ch.PublicKey])
			}
		}
		got := have.apply(t, changes, want)
		if got.text() != want.text() {
			t.Fatalf("seed %d: got\n%s\nwant\n%s", seed, got.text(), want.text())
		}
		if again := want.Changes(got, nil); again.Count() != 0 {
			t.Fatalf("seed %d: the second time %+v", seed, again)
		}
	}
}

// A peer that answers from elsewhere is left there until its node says that it
// has another address.
func TestPeersThatMove(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	k := keyOf("b")
	state := func(endpoint string) guardState {
		return guardState{Peers: []peer{{PublicKey: k, Endpoint: at(endpoint)}}}
	}
	const node, moved, now = "192.0.2.2:51820", "203.0.113.7:4000", "192.0.2.9:51820"
	for _, tc := range []struct {
		name, have, want, reported string
		changed                    bool
	}{
		{"as it was set", node, node, node, false},
		{"moved", moved, node, node, false},
		{"moved, and set by an earlier run", moved, node, "", true},
		{"another address of the node", node, now, node, true},
		{"moved, and another address of the node", moved, now, node, true},
		{"moved to where the node is now", now, now, node, false},
	} {
		reported := map[wgtypes.Key]netip.AddrPort{}
		if tc.reported != "" {
			reported[k] = at(tc.reported)
		}
		c := state(tc.want).Changes(state(tc.have), reported)
		if (c.Count() > 0) != tc.changed || tc.changed && *c.Peers[0].Endpoint != at(tc.want) {
			t.Errorf("%s: %+v", tc.name, c)
		}
	}
}

func TestKeyFile(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	file := filepath.Join(t.TempDir(), "agent", "wireguard.key")
	first, err := loadKey(file, log)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: the key must be its owner's alone", st.Mode(), err)
	}
	// What a start that was killed left does not matter.
	if err := os.WriteFile(file+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := loadKey(file, log)
	if err != nil || again.reveal() != first.reveal() || first.reveal() == (wgtypes.Key{}) {
		t.Errorf("the second time it is another key (%v)", err)
	}
	if said.Len() > 0 {
		t.Errorf("said: %s", said.String())
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if again, err = loadKey(file, log); err != nil || again.reveal() != first.reveal() || !strings.Contains(said.String(),
		"could be read by others") {
		t.Errorf("a key for everybody: %v, said %q", err, said.String())
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v after that", st.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("secret nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadKey(file, log); err == nil || !strings.Contains(err.Error(), "remove it") || strings.Contains(err.Error(), "secret") {
		t.Errorf("nonsense gives %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if another, err := loadKey(file, log); err != nil || another.reveal() == first.reveal() {
		t.Errorf("after the key was removed: the same, or %v", err)
	}
}

// TestKeysStaySecret: however what holds the key is printed, it is not told.
func TestKeysStaySecret(t *testing.T) {
	secret := wgtypes.Key{1, 2, 3, 4, 5, 6, 7, 8, 9}
	k := hide(secret)
	g := guardian{name: "wg", key: k}
	var out bytes.Buffer
	for _, v := range []any{k, &k, g, &g, hostNetwork{guard: &g}, struct{ K privateKey }{k}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("text", "key", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("JSON", "key", v)
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
	}
	for _, secret := range []string{secret.String(), "1 2 3 4 5", "1,2,3,4,5", "0102030405", "0x1, 0x2, 0x3"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q was told:\n%s", secret, out.String())
		}
	}
}
