package model

import (
	"encoding/binary"
	"net/netip"
)

// Family is an address family; every family has a Model and a table of its own.
type Family uint8

// The two families.
const (
	V4 Family = 4
	V6 Family = 6
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
	if f == V6 {
		return "IPv6"
	}
	return "IPv4"
}

// Table names one of the shared kernel maps and sets. Their number does not
// depend on the number of Services.
type Table uint8

// The shared maps and sets. In a key or value every field is padded to four
// bytes, as the kernel wants it in concatenations.
const (
	// Services: address . protocol . port -> class. Class and id lie in two
	// maps, since nft cannot print rules that use parts of a value; and so
	// scaling a Service rewrites its class alone.
	Services Table = iota
	// ServiceIDs: address . protocol . port -> id.
	ServiceIDs
	// NodePorts: protocol . port -> class.
	NodePorts
	// NodePortIDs: protocol . port -> id.
	NodePortIDs
	// Endpoints: id . index -> address . port. Indexes 0..n-1 are the
	// cluster-wide pool, LocalBase..LocalBase+m-1 the pool on this node.
	Endpoints
	// Members: id . address . port, the cluster pool of Services with
	// session affinity: tells whether a remembered endpoint is still good.
	Members
	// LocalMembers: the same for the pool on this node.
	LocalMembers
	// Hairpin: address . address of the endpoints on this node.
	Hairpin
	// ClusterIPs: address of every cluster IP in use.
	ClusterIPs
	// NodeAddrs: the node's addresses on which node ports answer.
	NodeAddrs
	// Ranges: id . address interval, the load balancer sources let in.
	Ranges
	numTables
)

// NumTables counts the tables.
const NumTables = int(numTables)

// LocalBase is the index of the first endpoint of a node-local pool.
const LocalBase = 1 << 24

// Shape tells how long the rows of a table are, in bytes.
type Shape struct {
	Name       string
	Key, Value int
	// Interval rows hold two keys, first and last, and no value.
	Interval bool
}

// Stride is the length of one row.
func (s Shape) Stride() int {
	if s.Interval {
		return 2 * s.Key
	}
	return s.Key + s.Value
}

// Shape returns the shape of table t for addresses of family f.
func (t Table) Shape(f Family) Shape {
	a := f.AddrLen()
	switch t {
	case Services:
		return Shape{Name: "services", Key: a + 8, Value: 4}
	case ServiceIDs:
		return Shape{Name: "service-ids", Key: a + 8, Value: 4}
	case NodePorts:
		return Shape{Name: "nodeports", Key: 8, Value: 4}
	case NodePortIDs:
		return Shape{Name: "nodeport-ids", Key: 8, Value: 4}
	case Endpoints:
		return Shape{Name: "endpoints", Key: 8, Value: a + 4}
	case Members:
		return Shape{Name: "members", Key: a + 8}
	case LocalMembers:
		return Shape{Name: "members-local", Key: a + 8}
	case Hairpin:
		return Shape{Name: "hairpin", Key: 2 * a}
	case ClusterIPs:
		return Shape{Name: "cluster-ips", Key: a}
	case NodeAddrs:
		return Shape{Name: "nodeport-ips", Key: a}
	case Ranges:
		return Shape{Name: "source-ranges", Key: 4 + a, Interval: true}
	}
	panic("model: a table without a shape")
}

// Rows is a number of rows of each table, end to end.
type Rows [NumTables][]byte

// Changes is what a Commit wants done, in one atomic step: first take away
// Del (keys alone; of interval rows both ends), then add Add.
type Changes struct {
	// Classes are those that rows of Add point to and that no earlier
	// Changes named.
	Classes []ClassID
	Del     Rows
	Add     Rows
	// Stale tells which connections the kernel must forget.
	Stale []Stale
	// Triggers are the trigger times of the slices that led here, for the
	// programming latency metric.
	Triggers []Trigger
}

// Count returns how many rows are taken away and added.
func (c *Changes) Count(f Family) (del, add int) {
	for t := Table(0); t < numTables; t++ {
		s := t.Shape(f)
		del += len(c.Del[t]) / delStride(s)
		add += len(c.Add[t]) / s.Stride()
	}
	return del, add
}

// Empty says that there is nothing to write.
func (c *Changes) Empty() bool {
	for t := range c.Del {
		if len(c.Del[t]) > 0 || len(c.Add[t]) > 0 {
			return false
		}
	}
	return len(c.Classes) == 0
}

func delStride(s Shape) int {
	if s.Interval {
		return 2 * s.Key
	}
	return s.Key
}

func putAddr(b []byte, f Family, a netip.Addr) []byte {
	if f == V4 {
		v := a.Unmap().As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

// putPort appends a port in network order, padded.
func putPort(b []byte, p uint16) []byte { return append(b, byte(p>>8), byte(p), 0, 0) }

// putNum appends a number in host order, as numgen and marks have it.
func putNum(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

func getAddr(b []byte, f Family) netip.Addr {
	a, _ := netip.AddrFromSlice(b[:f.AddrLen()])
	return a
}
