package defaults

import (
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
)

func NetworkPolicy(p *networking.NetworkPolicy) {
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networking.PolicyType{networking.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networking.PolicyTypeEgress)
		}
	}
	for i := range p.Spec.Ingress {
		policyPorts(p.Spec.Ingress[i].Ports)
	}
	for i := range p.Spec.Egress {
		policyPorts(p.Spec.Egress[i].Ports)
	}
}

func policyPorts(ports []networking.NetworkPolicyPort) {
	for i := range ports {
		fill(&ports[i].Protocol, v1.ProtocolTCP)
	}
}

func IngressClass(c *networking.IngressClass) {
	if c.Spec.Parameters != nil {
		fill(&c.Spec.Parameters.Scope, networking.IngressClassParametersReferenceScopeCluster)
	}
}

func EndpointSlice(e *discovery.EndpointSlice) {
	for i := range e.Ports {
		fill(&e.Ports[i].Name, "")
		fill(&e.Ports[i].Protocol, v1.ProtocolTCP)
	}
}
