package api

import (
	"net"
	"testing"
)

func TestFirstAddress(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.0.0.0/24": "10.0.0.1", "10.96.7.9/12": "10.96.0.1", "fd00::/112": "fd00::1", "10.0.0.0/32": "", "nonsense": "",
	} {
		ip, err := firstAddress(cidr)
		if (err != nil) != (want == "") || err == nil && ip.String() != want {
			t.Errorf("%s: %v, %v; want %q", cidr, ip, err, want)
		}
	}
}

// Servers that share a store keep each other's addresses; one that owns it
// replaces what an earlier run on another address left.
func TestEndpointsAreSharedOrReplaced(t *testing.T) {
	a, b := net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2)
	first := apiEndpoints(nil, a, 6443, false)
	if got := apiEndpoints(first, b, 6443, true).Subsets[0].Addresses; len(got) != 2 {
		t.Errorf("shared: %v", got)
	}
	if got := apiEndpoints(first, a, 6443, true).Subsets[0].Addresses; len(got) != 1 {
		t.Errorf("shared, known address: %v", got)
	}
	if got := apiEndpoints(first, b, 6443, false).Subsets[0].Addresses; len(got) != 1 || got[0].IP != b.String() {
		t.Errorf("owned: %v", got)
	}
	slice := apiSlice(nil, a, 6443, false)
	if got := apiSlice(slice, b, 6443, true).Endpoints; len(got) != 2 {
		t.Errorf("shared slice: %v", got)
	}
	if got := apiSlice(slice, b, 6443, false).Endpoints; len(got) != 1 {
		t.Errorf("owned slice: %v", got)
	}
}
