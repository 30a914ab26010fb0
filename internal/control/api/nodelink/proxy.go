package nodelink

import (
	"fmt"
	"net"
	"net/http"
)

// ProxyMethods are the methods that the proxy subresources forward.
var ProxyMethods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions, http.MethodPatch,
}

// MayProxy refuses addresses that are not a workload's: the API server's own loopback, link-local (cloud metadata),
// multicast, broadcast and unspecified addresses. allowLoopback lifts the first.
func MayProxy(address string, allowLoopback bool) error {
	ip := net.ParseIP(address)
	switch {
	case ip == nil:
		return fmt.Errorf("address not allowed: %q is not an IP address", address)
	case ip.IsLoopback() && !allowLoopback, ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(),
		ip.IsInterfaceLocalMulticast(), ip.IsMulticast(), ip.IsUnspecified(), ip.Equal(net.IPv4bcast):
		return fmt.Errorf("address not allowed: %s", address)
	}
	return nil
}
