package nodelink

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// ProxyMethods are the methods that the proxy subresources forward.
var ProxyMethods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions, http.MethodPatch,
}

// resolveTimeout bounds how long a name in a Node's addresses may take to resolve.
const resolveTimeout = 10 * time.Second

// Resolver turns a host name into its addresses.
type Resolver func(ctx context.Context, name string) ([]netip.Addr, error)

// MayProxy refuses addresses that are not a workload's: the API server's own
// loopback, link-local (cloud metadata), multicast, broadcast and unspecified
// addresses. allowLoopback lifts the first.
func MayProxy(address string, allowLoopback bool) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("address not allowed: %q is not an IP address", address)
	}
	return mayDial(ip, allowLoopback)
}

// mayDial is MayProxy of an address that was read already.
func mayDial(ip netip.Addr, allowLoopback bool) error {
	ip = ip.Unmap() // ::ffff:127.0.0.1 is 127.0.0.1
	if ip.IsGlobalUnicast() || ip.IsLoopback() && allowLoopback {
		return nil
	}
	return fmt.Errorf("address not allowed: %s (loopback, link-local, multicast and broadcast addresses are not dialed on behalf of API "+
		"clients: ask for an object whose address other machines reach)", ip)
}

// resolve returns the one address to dial for a host: the host itself if it is
// an IP address, else the first it resolves to. It resolves once and refuses a
// name of which any address is not allowed; the caller dials the result and
// never the name, so that a second answer of the DNS changes nothing
// (CVE-2020-8562, CVE-2022-3294).
func resolve(ctx context.Context, resolve Resolver, host string, allowLoopback bool) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, mayDial(ip, allowLoopback)
	}
	if resolve == nil {
		resolve = lookup
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addresses, err := resolve(ctx, host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("resolving its address %q: %w", host, err)
	}
	if len(addresses) == 0 {
		return netip.Addr{}, fmt.Errorf("resolving its address %q: no addresses", host)
	}
	for _, ip := range addresses {
		if err := mayDial(ip, allowLoopback); err != nil {
			return netip.Addr{}, fmt.Errorf("its address %q: %w", host, err)
		}
	}
	return addresses[0].Unmap(), nil
}

func lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}
