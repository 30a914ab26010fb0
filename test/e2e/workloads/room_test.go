package workloads

import (
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// unplug unplugs the host's cable; heal plugs it in again.
func unplug(m *kit.Host) { cable(m, netlink.LinkSetDown) }

func plugIn(m *kit.Host) { cable(m, netlink.LinkSetUp) }

func cable(m *kit.Host, set func(netlink.Link) error) {
	m.Cluster.T.Helper()
	link, err := netlink.LinkByName(m.Link)
	kit.Must(m.Cluster.T, err)
	kit.Must(m.Cluster.T, set(link))
}
