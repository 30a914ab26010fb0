package network

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Annotation of a Node holds what others need to send to it through WireGuard;
// the node itself writes it.
const Annotation = "berth.dev/wireguard"

// keepalive is how often a node whose address a router translates sends
// something, so that the router goes on letting answers in.
const keepalive = 25 * time.Second

// published is what a node tells others of its WireGuard device.
type published struct {
	PublicKey wgtypes.Key
	Port      int
}

type publishedJSON struct {
	PublicKey string `json:"publicKey"`
	Port      int    `json:"port"`
}

// String is the annotation's value.
func (p published) String() string {
	b, _ := json.Marshal(publishedJSON{p.PublicKey.String(), p.Port}) // text and a number
	return string(b)
}

// parsePublished reads the annotation's value.
func parsePublished(s string) (p published, err error) {
	var j publishedJSON
	if err := json.Unmarshal([]byte(s), &j); err != nil {
		return p, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	p.Port = j.Port
	if p.PublicKey, err = wgtypes.ParseKey(j.PublicKey); err != nil {
		return p, fmt.Errorf("annotation %s: publicKey: %w", Annotation, err)
	}
	if p.PublicKey == (wgtypes.Key{}) {
		return p, fmt.Errorf("annotation %s: publicKey: is zero", Annotation)
	}
	if p.Port < 1 || p.Port > 65535 {
		return p, fmt.Errorf("annotation %s: port %d: is not within 1..65535", Annotation, p.Port)
	}
	return p, nil
}

// guard is the WireGuard device of this node.
type guard struct {
	Name string
	MTU  int
	// Addrs are what this node sends with and others send to through it, as
	// Tunnel.Addrs are.
	Addrs []netip.Addr
	guardState
}

// guardState is what WireGuard itself knows of a device.
type guardState struct {
	published // this node's own
	Peers     []peer
}

// peer is another node, as WireGuard knows it.
type peer struct {
	PublicKey wgtypes.Key
	// Endpoint is where its packets are sent first; where it answers from is
	// where they go then.
	Endpoint netip.AddrPort
	// Allowed are the ranges it may send from, and that are sent to it.
	Allowed   []netip.Prefix
	Keepalive time.Duration // 0: none
}

// guardName is the name of the WireGuard device; empty if there is none.
func (p plan) guardName() string {
	if p.Guard == nil {
		return ""
	}
	return p.Guard.Name
}

func (p plan) peers() int {
	if p.Guard == nil {
		return 0
	}
	return len(p.Guard.Peers)
}

// startGuard plans the device and closes every way that is not encrypted: what
// no other route takes, such as packets to a node whose key is not known, ends
// here instead of at the host's router.
func (d *decider) startGuard() {
	g := &guard{Name: d.names.Guard, MTU: d.mtu(d.own.IPs[0], WireGuard), guardState: guardState{published: d.names.published}}
	for _, c := range d.own.PodCIDRs {
		g.Addrs = append(g.Addrs, c.Masked().Addr())
		d.taken[c.Masked()] = true
	}
	for _, c := range d.names.Cluster {
		d.plan.Routes = append(d.plan.Routes, route{Dst: c.Masked(), Unreachable: true})
	}
	d.plan.Guard = g
	d.keys = map[wgtypes.Key]string{d.names.PublicKey: d.own.Name}
}

// guard sends to a node through WireGuard, or says why it cannot: then nothing
// is sent to it at all.
func (d *decider) guard(n clusterNode) {
	problem := func(format string, args ...any) {
		d.plan.Problems = append(d.plan.Problems, "node "+n.Name+" "+fmt.Sprintf(format, args...))
	}
	if n.Published == "" {
		problem("has no WireGuard key yet (annotation %s): nothing is sent to its pods until it runs in mode wireguard too", Annotation)
		return
	}
	other, err := parsePublished(n.Published)
	if err != nil {
		problem("has a WireGuard key that cannot be read, so nothing is sent to its pods: %v", err)
		return
	}
	if who, ok := d.keys[other.PublicKey]; ok {
		problem("has the WireGuard key of node %s, so nothing is sent to its pods: was a data directory copied? Remove the key file of "+
			"one and start it again", who)
		return
	}
	local, remote, ok := d.endpoints(n)
	if !ok {
		problem("(%v) has no address of a family that this node (%v) has", n.IPs, d.own.IPs)
		return
	}
	d.keys[other.PublicKey] = n.Name
	p := peer{PublicKey: other.PublicKey, Endpoint: netip.AddrPortFrom(remote, uint16(other.Port))}
	if !d.held(local) {
		p.Keepalive = keepalive
	}
	for _, c := range n.PodCIDRs {
		// One range leads to one peer: the first by name keeps it.
		if c = c.Masked(); !d.taken[c] {
			d.taken[c] = true
			p.Allowed = append(p.Allowed, c)
			d.plan.Routes = append(d.plan.Routes, route{Dst: c, Link: d.plan.Guard.Name})
		}
	}
	d.plan.Guard.MTU = min(d.plan.Guard.MTU, d.mtu(local, WireGuard))
	d.plan.Guard.Peers = append(d.plan.Guard.Peers, p)
}

// held says whether a link of this host has an address; a router translates
// it otherwise.
func (d *decider) held(ip netip.Addr) bool {
	return slices.ContainsFunc(d.links, func(l link) bool {
		return slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == ip })
	})
}

// peerChange is what must happen to a peer; what is nil is right as it is.
type peerChange struct {
	PublicKey wgtypes.Key
	// Remove excludes everything else, New comes with everything else.
	Remove, New bool
	Endpoint    *netip.AddrPort
	Allowed     *[]netip.Prefix
	Keepalive   *time.Duration
}

// guardChanges lead from one state of a device to another.
type guardChanges struct {
	Key, Port bool
	Peers     []peerChange
}

// Count is the number of changes.
func (c guardChanges) Count() int {
	n := len(c.Peers)
	if c.Key {
		n++
	}
	if c.Port {
		n++
	}
	return n
}

// Changes lead from what a device has to what it should have. told are the
// endpoints that were set before: a peer that answers from another address
// moved there, which is right for as long as no one says that it lives
// elsewhere now.
func (g guardState) Changes(have guardState, reported map[wgtypes.Key]netip.AddrPort) guardChanges {
	c := guardChanges{Key: have.PublicKey != g.PublicKey, Port: have.Port != g.Port}
	left := map[wgtypes.Key]peer{}
	for _, p := range have.Peers {
		left[p.PublicKey] = p
	}
	var later []peerChange
	for _, w := range g.Peers {
		h, ok := left[w.PublicKey]
		delete(left, w.PublicKey)
		ch := peerChange{PublicKey: w.PublicKey, New: !ok}
		if !ok || h.Endpoint != w.Endpoint && (!h.Endpoint.IsValid() || reported[w.PublicKey] != w.Endpoint) {
			ch.Endpoint = &w.Endpoint
		}
		if !ok || !sameSet(h.Allowed, w.Allowed) {
			ch.Allowed = &w.Allowed
		}
		if !ok || h.Keepalive != w.Keepalive {
			ch.Keepalive = &w.Keepalive
		}
		if ch.Endpoint != nil || ch.Allowed != nil || ch.Keepalive != nil {
			later = append(later, ch)
		}
	}
	// Those that go make room first: a range belongs to one peer.
	for _, p := range have.Peers {
		if _, gone := left[p.PublicKey]; gone {
			c.Peers = append(c.Peers, peerChange{PublicKey: p.PublicKey, Remove: true})
		}
	}
	c.Peers = append(c.Peers, later...)
	return c
}

func sameSet(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}
