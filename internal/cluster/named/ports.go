package named

import (
	"fmt"
	"net"
)

// PortsFree says whether nothing on this host listens on the ports of a place.
func PortsFree(p Place) bool { return portsFree(p.FirstPort(), portsEach) }

func portsFree(first, count int) bool {
	for port := first; port < first+count; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
