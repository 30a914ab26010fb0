package model

import (
	"fmt"
	"hash/fnv"
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

// Class is everything a frontend can ask for apart from which endpoints it
// has. All frontends of one class share one chain, so there are a few dozen
// of them however many Services there are.
type Class struct {
	Kind Kind
	// NodePort: the frontend is found in NodePorts, not in Services.
	NodePort bool
	// External: node port, load balancer address or external IP.
	External bool
	// LocalPolicy: the traffic policy that applies is Local.
	LocalPolicy bool
	// Cluster and Local are the sizes of the pools that the class uses, and
	// 0 for one that it does not use.
	Cluster, Local int
	// Affinity is the ClientIP timeout in seconds, 0 without.
	Affinity int32
	// Ranges: only sources in Ranges are let in.
	Ranges bool
}

// ClassID is a class with its number in the kernel.
type ClassID struct {
	ID    uint32
	Class Class
}

// Name is the name of the class's chain; equal names mean equal classes.
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
	switch c.Kind {
	case Reject:
		b.WriteString("-reject")
		return b.String()
	case Drop:
		b.WriteString("-drop")
		return b.String()
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
	if c.Affinity > 0 {
		fmt.Fprintf(&b, "-sticky%d", c.Affinity)
	}
	return b.String()
}

func hash32(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}
