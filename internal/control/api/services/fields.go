package services

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// This file knows which fields a service of each type has, and how an update
// that leaves them out is read.

func hasClusterIP(s *v1.Service) bool {
	switch s.Spec.Type {
	case v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, "":
		return true
	}
	return false
}

func headless(s *v1.Service) bool { return s.Spec.ClusterIP == v1.ClusterIPNone }

// hasNodePorts says whether ports of the service get node ports.
func hasNodePorts(s *v1.Service) bool {
	switch s.Spec.Type {
	case v1.ServiceTypeNodePort:
		return true
	case v1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// mayHaveNodePorts says whether ports of the service may name node ports,
// whether or not they are filled in.
func mayHaveNodePorts(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer
}

// hasHealthPort says whether the service gets a health check node port.
func hasHealthPort(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

// externallyReachable services have an external traffic policy.
func externallyReachable(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer || s.Spec.Type == v1.ServiceTypeNodePort ||
		s.Spec.Type == v1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// alignClusterIPs keeps clusterIP the first of clusterIPs. Clients that know
// only the singular field set, change or clear it; the list follows. What
// remains contradictory is left for validation to report. old is nil on create.
func alignClusterIPs(s, old *v1.Service) {
	spec := &s.Spec
	if old == nil {
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
		return
	}
	sameList := slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs)
	switch {
	case spec.ClusterIP == old.Spec.ClusterIP && sameList:
	case spec.ClusterIP == "" && old.Spec.ClusterIP != "" && sameList:
		spec.ClusterIPs = nil
	case spec.ClusterIP != "" && spec.ClusterIP != old.Spec.ClusterIP && sameList:
		spec.ClusterIPs = []string{spec.ClusterIP}
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// inheritAllocated fills allocated values that an update leaves out from the
// stored service: anyone who PUTs a manifest without clusterIP or nodePort does
// not mean to lose them.
func inheritAllocated(s, old *v1.Service) {
	if hasClusterIP(s) && hasClusterIP(old) {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if s.Spec.ClusterIP == old.Spec.ClusterIP && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if hasNodePorts(s) && hasNodePorts(old) {
		inheritNodePorts(s, old)
	}
	if hasHealthPort(s) && hasHealthPort(old) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

type portKey struct {
	protocol v1.Protocol
	port     int32
}

func inheritNodePorts(s, old *v1.Service) {
	was := map[portKey]int32{}
	for _, p := range old.Spec.Ports {
		was[portKey{p.Protocol, p.Port}] = p.NodePort
	}
	named := map[int32]bool{}
	for _, p := range s.Spec.Ports {
		named[p.NodePort] = true
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		// A node port that the update names explicitly elsewhere has been moved
		// there; it is not inherited too.
		if n := was[portKey{p.Protocol, p.Port}]; p.NodePort == 0 && n != 0 && !named[n] {
			p.NodePort = n
		}
	}
}

// dropByType clears values that belonged to the old type and that the update
// merely carried along. Values that the update changed stay, for validation to
// refuse.
func dropByType(s, old *v1.Service) {
	if hasClusterIP(old) && !hasClusterIP(s) && s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs,
		old.Spec.ClusterIPs) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
	}
	// Turning allocation off for a load balancer keeps the ports it has until
	// the user removes them.
	if mayHaveNodePorts(old) && !mayHaveNodePorts(s) && sameNodePorts(s, old) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	if hasHealthPort(old) && !hasHealthPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if was := old.Spec.Type == v1.ServiceTypeLoadBalancer; was && s.Spec.Type != v1.ServiceTypeLoadBalancer {
		if equal(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if externallyReachable(old) && !externallyReachable(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
}

func equal[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// sameNodePorts says that the update names no node port that the stored service
// does not have.
func sameNodePorts(s, old *v1.Service) bool {
	was := map[int32]bool{0: true}
	for _, p := range old.Spec.Ports {
		was[p.NodePort] = true
	}
	for _, p := range s.Spec.Ports {
		if !was[p.NodePort] {
			return false
		}
	}
	return true
}

// nodePortsOf returns the distinct ports a service holds on every node, the
// health check port included.
func nodePortsOf(s *v1.Service) []uint16 {
	var out []uint16
	add := func(n int32) {
		if n > 0 && n <= 65535 && !slices.Contains(out, uint16(n)) {
			out = append(out, uint16(n))
		}
	}
	if mayHaveNodePorts(s) {
		for _, p := range s.Spec.Ports {
			add(p.NodePort)
		}
		add(s.Spec.HealthCheckNodePort)
	}
	return out
}
