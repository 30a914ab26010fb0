package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// claims are the addresses and ports that one request took from the pools. A
// request may run its preparation several times (a lost compare-and-swap, a
// generated name that exists); only when the outcome is known does settle
// decide what of it is kept.
type claims struct {
	mu    sync.Mutex
	ips   map[netip.Addr]owner
	ports map[uint16]owner
	// before is the stored service that the last attempt of an update started from.
	before *v1.Service
}

func newClaims() *claims {
	return &claims{ips: map[netip.Addr]owner{}, ports: map[uint16]owner{}}
}

func (c *claims) addIP(ip netip.Addr, who owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ips[ip] = who
}

func (c *claims) addPort(port uint16, who owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports[port] = who
}

// holds says whether this request already took the item in an earlier attempt.
func (c *claims) holdsIP(ip netip.Addr, who owner) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ips[ip] == who
}

func (c *claims) holdsPort(port uint16, who owner) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[port] == who
}

type claimsKey struct{}

func withClaims(ctx context.Context) (context.Context, *claims) {
	c := newClaims()
	return context.WithValue(ctx, claimsKey{}, c), c
}

func claimsFrom(ctx context.Context) (*claims, error) {
	c, ok := ctx.Value(claimsKey{}).(*claims)
	if !ok {
		return nil, errors.New("allocating for a service: the request did not come through the service storage")
	}
	return c, nil
}

// allocator gives services their cluster IPs and node ports.
type allocator struct {
	ips    *pool[netip.Addr]
	ports  *pool[uint16]
	ranges func(ctx context.Context, family v1.IPFamily) ([]netip.Prefix, error)
	port   PortRange
}

// allocate completes s, which has its families, taking what old does not hold
// already. What it takes is added to got even when it fails half way.
func (a *allocator) allocate(ctx context.Context, s, old *v1.Service, got *claims, dryRun bool) field.ErrorList {
	who := owner{s.Namespace, s.Name}
	if hasClusterIP(s) {
		if errs := a.allocateIPs(ctx, s, old, who, got, dryRun); len(errs) > 0 {
			return errs
		}
	}
	return a.allocatePorts(ctx, s, old, who, got, dryRun)
}

func (a *allocator) allocateIPs(ctx context.Context, s, old *v1.Service, who owner, got *claims, dryRun bool) field.ErrorList {
	if headless(s) {
		return nil
	}
	held := map[string]bool{}
	if old != nil {
		for _, ip := range old.Spec.ClusterIPs {
			held[ip] = true
		}
		// A cluster IP never changes into another; validation says so, and
		// nothing is taken for it.
		if len(old.Spec.ClusterIPs) > 0 && len(s.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] != s.Spec.ClusterIPs[0] &&
			hasClusterIP(old) {
			return nil
		}
	}
	path := field.NewPath("spec", "clusterIPs")
	for i, family := range s.Spec.IPFamilies {
		asked := ""
		if i < len(s.Spec.ClusterIPs) {
			asked = s.Spec.ClusterIPs[i]
		}
		if asked != "" && held[asked] {
			continue
		}
		ranges, err := a.ranges(ctx, family)
		if err != nil {
			return field.ErrorList{field.InternalError(path, fmt.Errorf("failed to allocate a serviceIP: %w", err))}
		}
		if asked != "" {
			if err := a.exactIP(ctx, asked, ranges, who, got, dryRun); err != nil {
				return field.ErrorList{refusal(path, s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: ", asked), err)}
			}
			continue
		}
		ip, err := a.nextIP(ctx, ranges, who, got, dryRun)
		if err != nil {
			return field.ErrorList{field.InternalError(path, fmt.Errorf("failed to allocate a serviceIP: %w", err))}
		}
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip.String())
	}
	if len(s.Spec.ClusterIPs) > 0 {
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return nil
}

// refusedError is a request that can be answered with what is wrong about it;
// other errors are ours.
type refusedError string

func (e refusedError) Error() string { return string(e) }

func refusal(path *field.Path, value any, prefix string, err error) *field.Error {
	var refused refusedError
	if errors.As(err, &refused) {
		return field.Invalid(path, value, prefix+refused.Error())
	}
	return field.InternalError(path, fmt.Errorf("%s%w", prefix, err))
}

func (a *allocator) exactIP(ctx context.Context, text string, ranges []netip.Prefix, who owner, got *claims, dryRun bool) error {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return refusedError(fmt.Sprintf("%q is not an IP address", text))
	}
	if got.holdsIP(ip, who) {
		return nil
	}
	if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return usable(p, ip) }) {
		valid := make([]string, len(ranges))
		for i := range ranges {
			valid[i] = ranges[i].String()
		}
		return refusedError(fmt.Sprintf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", ip,
			strings.Join(valid, ",")))
	}
	switch err := a.ips.exact(ctx, ip, who, dryRun); {
	case errors.Is(err, errTaken):
		return refusedError("provided IP is already allocated")
	case err != nil:
		return err
	}
	if !dryRun {
		got.addIP(ip, who)
	}
	return nil
}

// nextIP takes an address from the first range that has one.
func (a *allocator) nextIP(ctx context.Context, ranges []netip.Prefix, who owner, got *claims, dryRun bool) (netip.Addr, error) {
	for _, p := range ranges {
		ip, err := a.ips.next(ctx, addressSpace(p), who, dryRun)
		if errors.Is(err, errFull) {
			continue
		}
		if err != nil {
			return netip.Addr{}, err
		}
		if !dryRun {
			got.addIP(ip, who)
		}
		return ip, nil
	}
	return netip.Addr{}, errFull
}

func (a *allocator) allocatePorts(ctx context.Context, s, old *v1.Service, who owner, got *claims, dryRun bool) field.ErrorList {
	mine := map[int32]bool{} // ports the service has or has just been given
	if old != nil {
		for _, n := range nodePortsOf(old) {
			mine[int32(n)] = true
		}
	}
	if mayHaveNodePorts(s) {
		if errs := a.servicePorts(ctx, s, mine, who, got, dryRun); len(errs) > 0 {
			return errs
		}
	}
	if !hasHealthPort(s) {
		return nil
	}
	path := field.NewPath("spec", "healthCheckNodePort")
	if n := s.Spec.HealthCheckNodePort; n != 0 {
		if !mine[n] {
			if err := a.exactPort(ctx, n, who, got, dryRun); err != nil {
				return field.ErrorList{refusal(path, n, "", err)}
			}
		}
		return nil
	}
	n, err := a.nextPort(ctx, who, got, dryRun)
	if err != nil {
		return field.ErrorList{field.InternalError(path, fmt.Errorf("failed to allocate a nodePort: %w", err))}
	}
	s.Spec.HealthCheckNodePort = n
	return nil
}

// servicePorts claims the chosen ports first, so that a random one cannot get
// in their way, then fills the others. Entries with the same port number and
// different protocols share a node port.
func (a *allocator) servicePorts(ctx context.Context, s *v1.Service, mine map[int32]bool, who owner, got *claims,
	dryRun bool) field.ErrorList {
	path := field.NewPath("spec", "ports")
	byPort := map[int32]int32{}
	used := map[portKey]bool{} // (protocol, node port) pairs of this service
	for i, p := range s.Spec.Ports {
		if p.NodePort == 0 {
			continue
		}
		if !mine[p.NodePort] {
			if err := a.exactPort(ctx, p.NodePort, who, got, dryRun); err != nil {
				return field.ErrorList{refusal(path.Index(i).Child("nodePort"), p.NodePort, "", err)}
			}
			mine[p.NodePort] = true
		}
		byPort[p.Port] = p.NodePort
		used[portKey{p.Protocol, p.NodePort}] = true
	}
	if !hasNodePorts(s) {
		return nil
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort != 0 {
			continue
		}
		n := byPort[p.Port]
		if n == 0 || used[portKey{p.Protocol, n}] {
			var err error
			if n, err = a.nextPort(ctx, who, got, dryRun); err != nil {
				return field.ErrorList{field.InternalError(path.Index(i).Child("nodePort"), fmt.Errorf("failed to allocate a nodePort: %w",
					err))}
			}
		}
		p.NodePort = n
		byPort[p.Port] = n
		used[portKey{p.Protocol, n}] = true
	}
	return nil
}

func (a *allocator) exactPort(ctx context.Context, n int32, who owner, got *claims, dryRun bool) error {
	if !a.port.contains(n) {
		return refusedError(fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", a.port.First,
			a.port.Last))
	}
	if got.holdsPort(uint16(n), who) {
		return nil
	}
	switch err := a.ports.exact(ctx, uint16(n), who, dryRun); {
	case errors.Is(err, errTaken):
		return refusedError("provided port is already allocated")
	case err != nil:
		return err
	}
	if !dryRun {
		got.addPort(uint16(n), who)
	}
	return nil
}

func (a *allocator) nextPort(ctx context.Context, who owner, got *claims, dryRun bool) (int32, error) {
	n, err := a.ports.next(ctx, a.port.space(), who, dryRun)
	if err != nil {
		return 0, err
	}
	if !dryRun {
		got.addPort(n, who)
	}
	return int32(n), nil
}

// releaseUnused ends a request. now is the service as stored afterwards (nil if
// it is gone or was never there), before as stored previously. Whatever the
// request took, or before had, that now does not have is given back. Errors are
// returned for the log only: what stays behind is found by the repair.
func (a *allocator) releaseUnused(ctx context.Context, got *claims, before, now *v1.Service) error {
	keepIP, keepPort := map[string]bool{}, map[uint16]bool{}
	if now != nil {
		for _, ip := range now.Spec.ClusterIPs {
			keepIP[ip] = true
		}
		for _, p := range nodePortsOf(now) {
			keepPort[p] = true
		}
	}
	var errs []error
	for ip, who := range got.ips {
		if !keepIP[ip.String()] || now == nil || now.Name != who.Name {
			errs = append(errs, a.ips.release(ctx, ip, who))
		}
	}
	for p, who := range got.ports {
		if !keepPort[p] || now == nil || now.Name != who.Name {
			errs = append(errs, a.ports.release(ctx, p, who))
		}
	}
	if before != nil {
		who := owner{before.Namespace, before.Name}
		for _, text := range before.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil && !keepIP[text] {
				errs = append(errs, a.ips.release(ctx, ip, who))
			}
		}
		for _, p := range nodePortsOf(before) {
			if !keepPort[p] {
				errs = append(errs, a.ports.release(ctx, p, who))
			}
		}
	}
	return errors.Join(errs...)
}
