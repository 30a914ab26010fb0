package row

import (
	"net/netip"
	"testing"
)

func TestFamilies(t *testing.T) {
	for _, c := range []struct {
		family     Family
		length     int
		text       string
		four, six  bool // has an IPv4, an IPv6 address
		mapped, no bool // has an IPv4 address written as IPv6, no address
	}{
		{V4, 4, "IPv4", true, false, true, false},
		{V6, 16, "IPv6", false, true, false, false},
		{Bridge, 4, "bridge", false, true, false, false},
	} {
		if got := c.family.AddrLen(); got != c.length {
			t.Errorf("%s: addresses have %d bytes, want %d", c.family, got, c.length)
		}
		if got := c.family.String(); got != c.text {
			t.Errorf("family %d is called %q, want %q", c.family, got, c.text)
		}
		for address, want := range map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): c.four, netip.MustParseAddr("2001:db8::1"): c.six,
			netip.MustParseAddr("::ffff:192.0.2.1"): c.mapped, {}: c.no} {
			if got := c.family.Has(address); got != want {
				t.Errorf("%s has %s: %v, want %v", c.family, address, got, want)
			}
		}
	}
}

// TestStrides: what a row, and what names a row to remove, take in a message.
func TestStrides(t *testing.T) {
	for name, c := range map[string]struct {
		shape       Shape
		add, remove int
	}{
		"set":          {Shape{Key: 8}, 8, 8},
		"map":          {Shape{Key: 8, Value: 12}, 20, 8},
		"verdict map":  {Shape{Key: 8, Value: ChainLen, Chains: true}, 8 + ChainLen, 8},
		"interval set": {Shape{Key: 8, Interval: true}, 16, 16},
		"intervals have no value": {Shape{Key: 4, Value: 4, Interval: true, Single: true}, 8,
			8},
	} {
		if add, remove := c.shape.Stride(), c.shape.DelStride(); add != c.add || remove != c.remove {
			t.Errorf("%s: %d and %d bytes, want %d and %d", name, add, remove, c.add, c.remove)
		}
	}
}
