package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestRemoveBridge: with a bridge go the links of pods that the kernel has not
// cleared yet; a bridge that is not there is no error.
func TestRemoveBridge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: making links needs root")
	}
	bridge, pod, other := fmt.Sprintf("rb%d", os.Getpid()), fmt.Sprintf("rp%d", os.Getpid()), fmt.Sprintf("ro%d", os.Getpid())
	t.Cleanup(func() {
		for _, name := range []string{bridge, pod, other} {
			if l, err := netlink.LinkByName(name); err == nil {
				_ = netlink.LinkDel(l)
			}
		}
	})
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}
	if err := netlink.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	for name, master := range map[string]int{pod: br.Index, other: 0} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: master},
			PeerName: name + "p"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeBridge(bridge); err != nil {
			t.Error(err)
		}
	}
	for name, stays := range map[string]bool{bridge: false, pod: false, other: true} {
		if _, err := netlink.LinkByName(name); (err == nil) != stays {
			t.Errorf("link %s: %v", name, err)
		}
	}
}
