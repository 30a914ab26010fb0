package model

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/nft/row"
)

// Family is an address family; every family has a Model and a table of its own.
type Family = row.Family

// The two families.
const (
	V4 = row.V4
	V6 = row.V6
)

// shape tells how long the rows of a table are, in bytes.
type shape = row.Shape

// Table names a kind of kernel map or set. In a key or value every field is
// padded to four bytes, as the kernel wants it in concatenations.
type Table uint8

// The tables. "front" stands for address . protocol . port; in the NodePort
// variants for protocol . port.
const (
	// VIPs: front. There is one set for each class of frontends.
	VIPs Table = iota
	// NodePorts: the same for node ports.
	NodePorts
	// Endpoints: front . index -> address . port. Indexes 0..n-1 are the
	// cluster-wide pool, LocalBase..LocalBase+m-1 the pool on this node.
	Endpoints
	// NodePortEndpoints: the same for node ports.
	NodePortEndpoints
	// Sticky: front -> number of the service port. Only frontends with
	// session affinity have rows.
	Sticky
	// StickyNodePorts: the same for node ports.
	StickyNodePorts
	// Picks: number of a service port . index -> number of an endpoint. The
	// indexes are those of Endpoints.
	Picks
	// StickyEndpoints: number of an endpoint -> address . port.
	StickyEndpoints
	// StickyLocal: the same for the endpoints on this node.
	StickyLocal
	// Hairpin: address . address of the endpoints on this node.
	Hairpin
	// ClusterIPs: address of every cluster IP in use.
	ClusterIPs
	// ExternalIPs: every load balancer address and external IP in use.
	ExternalIPs
	// NodeAddrs: the node's addresses on which node ports answer.
	NodeAddrs
	// Ranges: front . source interval, the sources let in.
	Ranges
	numTables
)

// NumTables counts the tables.
const NumTables = int(numTables)

// LocalBase is the index of the first endpoint of a node-local pool.
const LocalBase = 1 << 24

// Pool tells which pool of a service port is meant.
type Pool uint8

// The pools.
const (
	ClusterPool Pool = iota
	LocalPool
)

func (p Pool) base() uint32 { return uint32(p) * LocalBase }

// shape returns the shape of table t for addresses of family f.
func (t Table) Shape(f Family) shape {
	a := f.AddrLen()
	switch t {
	case VIPs:
		return shape{Key: a + 8}
	case NodePorts:
		return shape{Key: 8}
	case Endpoints:
		return shape{Name: "endpoints", Key: a + 12, Value: a + 4}
	case NodePortEndpoints:
		return shape{Name: "nodeport-endpoints", Key: 12, Value: a + 4}
	case Sticky:
		return shape{Name: "sticky", Key: a + 8, Value: 4}
	case StickyNodePorts:
		return shape{Name: "nodeport-sticky", Key: 8, Value: 4}
	case Picks:
		return shape{Name: "sticky-picks", Key: 8, Value: 4}
	case StickyEndpoints:
		return shape{Name: "sticky-endpoints", Key: 4, Value: a + 4}
	case StickyLocal:
		return shape{Name: "sticky-endpoints-local", Key: 4, Value: a + 4}
	case Hairpin:
		return shape{Name: "hairpin", Key: 2 * a}
	case ClusterIPs:
		return shape{Name: "cluster-ips", Key: a}
	case ExternalIPs:
		return shape{Name: "external-ips", Key: a}
	case NodeAddrs:
		return shape{Name: "nodeport-ips", Key: a}
	case Ranges:
		return shape{Name: "source-ranges", Key: 2*a + 8, Interval: true}
	}
	panic("model: a table without a shape")
}

// Set is one kernel map or set: a table or, of VIPs and NodePorts, the part
// that belongs to one class.
type Set struct {
	Table Table
	Class Class
}

// shape returns the shape of the set's rows, with its name.
func (s Set) Shape(f Family) shape {
	shape := s.Table.Shape(f)
	if s.Table == VIPs || s.Table == NodePorts {
		shape.Name = s.Class.Name()
	}
	return shape
}

// Delta is what changes in one set: first the rows named by Del go (keys
// alone; of interval rows both ends), then those of Add come. Rows lie end to
// end. Was holds the values of the rows in Del, in their order.
type Delta struct{ Del, Was, Add []byte }

// Changes is what a Commit wants done, in one atomic step.
type Changes struct {
	Sets map[Set]*Delta
	// Stale tells which connections the kernel must forget.
	Stale []Stale
	// Triggers are the trigger times of the slices that led here, for the
	// programming latency metric.
	Triggers []trigger
	// Health are the health check ports of changed Services.
	Health []HealthCheck
	// Services and Slices count what was looked at again because it changed.
	Services, Slices int
}

// HealthCheck is the node port on which load balancers ask whether this node
// has endpoints of a Service; Port is 0 when there is none.
type HealthCheck struct {
	Service Name
	Port    int32
	// Local is the number of different addresses of ready endpoints here.
	Local int
}

func newChanges() *Changes { return &Changes{Sets: map[Set]*Delta{}} }

func (c *Changes) set(s Set) *Delta {
	d := c.Sets[s]
	if d == nil {
		d = &Delta{}
		c.Sets[s] = d
	}
	return d
}

func (c *Changes) table(t Table) *Delta { return c.set(Set{Table: t}) }

// Ordered lists the sets that change, in an order that is always the same.
func (c *Changes) Ordered() []Set {
	return slices.SortedFunc(maps.Keys(c.Sets), func(a, b Set) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), strings.Compare(a.Class.Name(), b.Class.Name()))
	})
}

// Count returns how many rows are removed and added.
func (c *Changes) Count(f Family) (del, add int) {
	for s, d := range c.Sets {
		shape := s.Shape(f)
		del += len(d.Del) / shape.DelStride()
		add += len(d.Add) / shape.Stride()
	}
	return del, add
}

// Empty says that there is nothing to write.
func (c *Changes) Empty() bool {
	for _, d := range c.Sets {
		if len(d.Del) > 0 || len(d.Add) > 0 {
			return false
		}
	}
	return true
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

func getAddrPort(b []byte, f Family) netip.AddrPort {
	return netip.AddrPortFrom(getAddr(b, f), binary.BigEndian.Uint16(b[f.AddrLen():]))
}

// vipKey identifies a frontend; the address of a node port is invalid.
type vipKey struct {
	addr  netip.Addr
	proto byte
	port  uint16
}

func (k vipKey) compare(o vipKey) int {
	return cmp.Or(k.addr.Compare(o.addr), cmp.Compare(k.proto, o.proto), cmp.Compare(k.port, o.port))
}

// put appends the frontend as the first fields of a key.
func (k vipKey) put(b []byte, f Family) []byte {
	if k.addr.IsValid() {
		b = putAddr(b, f, k.addr)
	}
	return putPort(append(b, k.proto, 0, 0, 0), k.port)
}

// of returns t for frontends with an address and its variant for node ports.
func (k vipKey) of(t Table) Table {
	if !k.addr.IsValid() {
		return t + 1
	}
	return t
}

func (k vipKey) addrPort() netip.AddrPort { return netip.AddrPortFrom(k.addr, k.port) }

func getVIP(b []byte, f Family, nodePort bool) (k vipKey, rest []byte) {
	if !nodePort {
		k.addr, b = getAddr(b, f), b[f.AddrLen():]
	}
	k.proto, k.port = b[0], binary.BigEndian.Uint16(b[4:])
	return k, b[8:]
}
