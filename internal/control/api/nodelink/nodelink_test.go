package nodelink

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// answers gives one list of addresses after the other, as a DNS server that
// rebinds a name does.
func answers(lists ...[]string) Resolver {
	return func(context.Context, string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, a := range lists[0] {
			out = append(out, netip.MustParseAddr(a))
		}
		lists = lists[1:]
		return out, nil
	}
}

// A name is resolved once: what is dialed is what was checked (finding 20,
// CVE-2020-8562).
func TestResolveOnce(t *testing.T) {
	node := &v1.Node{}
	node.Name = "n"
	node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n.example"}}
	read := func(context.Context, string) (*v1.Node, error) { return node, nil }
	f := New(Config{Nodes: read, Resolve: answers([]string{"192.0.2.7", "2001:db8::7"}, []string{"127.0.0.1"},
		[]string{"192.0.2.7", "169.254.169.254"})})
	link, err := f.Find(t.Context(), "n")
	if err != nil || link.URL("/", nil).Host != "192.0.2.7:10250" {
		t.Fatalf("link %+v, %v: want the address that was checked", link, err)
	}
	for _, why := range []string{"now it is loopback", "one of its addresses is the cloud's metadata"} {
		if link, err := f.Find(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "address not allowed") {
			t.Errorf("%s: %+v, %v", why, link, err)
		}
	}
}

func TestMayProxy(t *testing.T) {
	for address, want := range map[string]bool{
		"192.0.2.1": true, "10.0.0.1": true, "fd00::1": true, "2001:db8::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"169.254.169.254": false, "fe80::1": false, "224.0.0.1": false, "ff02::1": false, "0.0.0.0": false, "::": false,
		"255.255.255.255": false, "127.0.0.01": false, "localhost": false, "": false,
	} {
		if err := MayProxy(address, false); (err == nil) != want {
			t.Errorf("%q: %v, want allowed %v", address, err, want)
		}
	}
	if MayProxy("127.0.0.1", true) != nil || MayProxy("::ffff:127.0.0.1", true) != nil || MayProxy("169.254.169.254", true) == nil {
		t.Error("allowLoopback must lift loopback and nothing else")
	}
}
