package model

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"strings"
)

// Kind is what happens to a new connection of a class.
type Kind uint8

// The kinds.
const (
	// Spread: to one of the endpoints, each equally likely.
	Spread Kind = iota
	// Reject: refused, since there is no endpoint anywhere.
	Reject
	// Drop: silence, since a Local policy applies and no endpoint is here.
	Drop
)

func (k Kind) String() string { return [...]string{"spread", "reject", "drop"}[k] }

// Class is everything a frontend can ask for apart from which endpoints it
// has. All frontends of one class are members of one set and share one chain,
// so there are a few dozen of them however many Services there are.
type Class struct {
	Kind Kind
	// NodePort: the frontend is a port of the node's own addresses.
	NodePort bool
	// External: node port, load balancer address or external IP.
	External bool
	// LocalPolicy: the traffic policy that applies is Local.
	LocalPolicy bool
	// Cluster and Local tell how large the pools are that the class uses,
	// rounded up to a power of two, and 0 for one that it does not use.
	Cluster, Local int
	// Timeout is how long, in seconds, clients return to the endpoint they
	// had (ClientIP affinity); 0 without.
	Timeout int
	// Ranges: only sources in Ranges are let in.
	Ranges bool
}

// Name is the name of the class's set and chain; equal names mean equal classes.
func (c Class) Name() string {
	var b strings.Builder
	b.WriteString("vip")
	if c.NodePort {
		b.Reset()
		b.WriteString("nodeport")
	}
	if c.Ranges {
		b.WriteString("-ranges")
	}
	if c.Kind != Spread {
		return b.String() + "-" + c.Kind.String()
	}
	if c.External {
		b.WriteString("-ext")
	}
	if c.LocalPolicy {
		b.WriteString("-local")
	}
	fmt.Fprintf(&b, "-%d", c.Cluster)
	if c.LocalPolicy {
		fmt.Fprintf(&b, "-%d", c.Local)
	}
	if c.Timeout > 0 {
		fmt.Fprintf(&b, "-sticky-%d", c.Timeout)
	}
	return b.String()
}

// ClassByName reverses Name.
func ClassByName(name string) (Class, bool) {
	var c Class
	parts := strings.Split(name, "-")
	switch parts[0] {
	case "vip":
	case "nodeport":
		c.NodePort = true
	default:
		return c, false
	}
	sizes := []*int{&c.Cluster, &c.Local}
	for _, p := range parts[1:] {
		switch p {
		case "ranges":
			c.Ranges = true
		case Reject.String():
			c.Kind = Reject
		case Drop.String():
			c.Kind = Drop
		case "ext":
			c.External = true
		case "local":
			c.LocalPolicy = true
		case "sticky":
			sizes = []*int{&c.Timeout}
		default:
			if len(sizes) == 0 {
				return c, false
			}
			if _, err := fmt.Sscanf(p, "%d", sizes[0]); err != nil {
				return c, false
			}
			sizes = sizes[1:]
		}
	}
	return c, c.Name() == name
}

// bucket rounds a pool's size up to a power of two. A chain draws an index
// below the bucket and draws again when no one has it, so that most changes
// of a pool's size leave its class alone.
func bucket(n int) int {
	if n <= 1 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

func hash32(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}
