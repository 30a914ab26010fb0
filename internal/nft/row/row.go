// Package row says what the rows of nftables' sets are made of: address
// families and the shapes of keys and values. It is pure, for models that
// decide which rows there are.
package row

import "net/netip"

// Family is the family of a table.
type Family uint8

// The families. Tables of Bridge see frames, before any address is looked at.
const (
	Bridge Family = 2
	V4     Family = 4
	V6     Family = 6
)

// AddrLen is the length of an address in bytes: 4 or 16.
func (f Family) AddrLen() int {
	if f == V6 {
		return 16
	}
	return 4
}

// Has says whether a belongs to the family.
func (f Family) Has(a netip.Addr) bool { return a.IsValid() && a.Unmap().Is4() == (f == V4) }

func (f Family) String() string {
	switch f {
	case V6:
		return "IPv6"
	case Bridge:
		return "bridge"
	}
	return "IPv4"
}

// ChainLen is how many bytes of a row the name of a chain takes, padded with zeros.
const ChainLen = 128

// Shape tells how long the rows of a set are, in bytes. Every field is padded
// to four bytes, as the kernel wants it in concatenations.
type Shape struct {
	Name       string
	Key, Value int
	// Interval rows hold two keys, first and last, and no value.
	Interval bool
	// Single says of an Interval set that its key has one field: the kernel
	// holds where each interval begins and where it has ended, and Rows cannot
	// read them.
	Single bool
	// Chains says that values are names of chains to go to, of ChainLen bytes.
	Chains bool
}

// Stride is the length of one row.
func (s Shape) Stride() int {
	if s.Interval {
		return 2 * s.Key
	}
	return s.Key + s.Value
}

// DelStride is the length of what names one row to take away.
func (s Shape) DelStride() int {
	if s.Interval {
		return 2 * s.Key
	}
	return s.Key
}
