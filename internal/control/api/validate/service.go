package validate

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kubeletPort must not be reachable through a load balancer.
const kubeletPort = 10250

// Service checks a Service by itself. Whether its addresses and node ports
// lie in the cluster's ranges and are free is up to the allocators.
func Service(s *v1.Service) errs {
	spec := &s.Spec
	all := mustBeOneOf(specPath.Child("type"), spec.Type, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer,
		v1.ServiceTypeExternalName)
	if len(spec.Ports) == 0 && spec.ClusterIP != v1.ClusterIPNone && spec.Type != v1.ServiceTypeExternalName {
		all = append(all, field.Required(specPath.Child("ports"), ""))
	}
	switch spec.Type {
	case v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer:
		if spec.ClusterIP == v1.ClusterIPNone {
			all = append(all, field.Invalid(specPath.Child("clusterIPs").Index(0), spec.ClusterIP,
				fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
		}
	case v1.ServiceTypeExternalName:
		all = append(all, forbid(specPath, "may not be set for ExternalName services", []given{
			{"clusterIPs", len(spec.ClusterIPs) > 0 || spec.ClusterIP != ""}, {"ipFamilies", len(spec.IPFamilies) > 0},
			{"ipFamilyPolicy", spec.IPFamilyPolicy != nil}})...)
		all = append(all, named(specPath.Child("externalName"), strings.TrimSuffix(spec.ExternalName, "."),
			validation.IsDNS1123Subdomain)...)
	}
	all = append(all, servicePorts(specPath.Child("ports"), spec)...)
	all = append(all, labels(specPath.Child("selector"), spec.Selector)...)
	all = append(all, affinityOfClients(spec)...)
	all = append(all, clusterAddresses(spec)...)
	all = append(all, outside(spec)...)
	all = append(all, serviceAnnotations(s)...)
	if d := spec.TrafficDistribution; d != nil {
		all = append(all, oneOf(specPath.Child("trafficDistribution"), *d, v1.ServiceTrafficDistributionPreferClose,
			v1.ServiceTrafficDistributionPreferSameZone, v1.ServiceTrafficDistributionPreferSameNode)...)
	}
	return all
}

// serviceAnnotations checks the annotations that were there before a field was.
func serviceAnnotations(s *v1.Service) errs {
	var all errs
	at := field.NewPath("metadata", "annotations")
	hints, hinted := s.Annotations[v1.DeprecatedAnnotationTopologyAwareHints]
	mode, moded := s.Annotations[v1.AnnotationTopologyMode]
	if hinted && moded && hints != mode {
		all = append(all, field.Invalid(at.Key(v1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", v1.DeprecatedAnnotationTopologyAwareHints)))
	}
	text := strings.TrimSpace(s.Annotations[v1.AnnotationLoadBalancerSourceRangesKey])
	if _, ok := s.Annotations[v1.AnnotationLoadBalancerSourceRangesKey]; !ok || len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return all
	}
	one := at.Key(v1.AnnotationLoadBalancerSourceRangesKey)
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		return append(all, field.Forbidden(one, "may only be used when `type` is 'LoadBalancer'"))
	}
	if text == "" {
		return all
	}
	for _, cidr := range strings.Split(text, ",") {
		all = append(all, legacyCIDR(one, strings.TrimSpace(cidr))...)
	}
	return all
}

func servicePorts(p *field.Path, spec *v1.ServiceSpec) errs {
	type key struct {
		protocol v1.Protocol
		port     int32
	}
	var all errs
	names := unique[string]{}
	ports, nodePorts := map[key]bool{}, map[key]bool{}
	for i := range spec.Ports {
		at, port := p.Index(i), &spec.Ports[i]
		switch {
		case port.Name == "" && len(spec.Ports) > 1:
			all = append(all, field.Required(at.Child("name"), ""))
		case port.Name != "":
			all = append(all, invalid(at.Child("name"), port.Name, validation.IsDNS1123Label(port.Name))...)
			all = append(all, names.add(at.Child("name"), port.Name)...)
		}
		all = append(all, portNumber(at.Child("port"), port.Port)...)
		all = append(all, mustBeOneOf(at.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
		all = append(all, portOrName(at.Child("targetPort"), port.TargetPort)...)
		if port.AppProtocol != nil {
			all = append(all, invalid(at.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))...)
		}
		if spec.Type == v1.ServiceTypeClusterIP && port.NodePort != 0 {
			all = append(all, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
		if spec.Type == v1.ServiceTypeLoadBalancer && port.Port == kubeletPort {
			all = append(all, field.Invalid(at, port.Port, fmt.Sprintf("may not expose port %v externally since it is used by kubelet",
				kubeletPort)))
		}
		if k := (key{port.Protocol, port.Port}); ports[k] {
			all = append(all, field.Duplicate(at, v1.ServicePort{Protocol: port.Protocol, Port: port.Port}))
		} else {
			ports[k] = true
		}
		if k := (key{port.Protocol, port.NodePort}); port.NodePort != 0 && nodePorts[k] {
			all = append(all, field.Duplicate(at.Child("nodePort"), port.NodePort))
		} else {
			nodePorts[k] = true
		}
	}
	return all
}

func affinityOfClients(spec *v1.ServiceSpec) errs {
	all := mustBeOneOf(specPath.Child("sessionAffinity"), spec.SessionAffinity, v1.ServiceAffinityClientIP, v1.ServiceAffinityNone)
	at, c := specPath.Child("sessionAffinityConfig"), spec.SessionAffinityConfig
	switch {
	case spec.SessionAffinity == v1.ServiceAffinityNone && c != nil:
		all = append(all, field.Forbidden(at, fmt.Sprintf("must not be set when session affinity is %s", v1.ServiceAffinityNone)))
	case spec.SessionAffinity == v1.ServiceAffinityClientIP && (c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil):
		all = append(all, field.Required(at, fmt.Sprintf("when session affinity type is %s", v1.ServiceAffinityClientIP)))
	case spec.SessionAffinity == v1.ServiceAffinityClientIP:
		seconds := *c.ClientIP.TimeoutSeconds
		if seconds <= 0 || seconds > 86400 {
			all = append(all, field.Invalid(at.Child("clientIP", "timeoutSeconds"), seconds, "must be greater than 0 and less than 86400"))
		}
	}
	return all
}

func clusterAddresses(spec *v1.ServiceSpec) errs {
	at := specPath.Child("clusterIPs")
	var all errs
	for i, family := range spec.IPFamilies {
		all = append(all, oneOf(specPath.Child("ipFamilies").Index(i), family, v1.IPv4Protocol, v1.IPv6Protocol)...)
		if i > 0 && family == spec.IPFamilies[0] {
			all = append(all, field.Duplicate(specPath.Child("ipFamilies").Index(i), family))
		}
	}
	all = append(all, oneOfIfSet(specPath.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, v1.IPFamilyPolicySingleStack,
		v1.IPFamilyPolicyPreferDualStack, v1.IPFamilyPolicyRequireDualStack)...)
	if p := spec.IPFamilyPolicy; p != nil && *p == v1.IPFamilyPolicySingleStack {
		if len(spec.IPFamilies) > 1 {
			all = append(all, field.Invalid(specPath.Child("ipFamilyPolicy"), *p,
				"must be RequireDualStack or PreferDualStack when multiple 'ipFamilies' are specified"))
		}
		if len(spec.ClusterIPs) > 1 {
			all = append(all, field.Invalid(specPath.Child("ipFamilyPolicy"), *p,
				"must be RequireDualStack or PreferDualStack when multiple 'clusterIPs' are specified"))
		}
	}
	switch {
	case spec.Type == v1.ServiceTypeExternalName:
		return all
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		return append(all, field.Required(at, ""))
	case len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP:
		return append(all, field.Invalid(at, spec.ClusterIPs, "first value must match `clusterIP`"))
	case len(spec.ClusterIPs) > 2:
		return append(all, field.Invalid(at, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	for i, ip := range spec.ClusterIPs {
		if ip == v1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				all = append(all, field.Invalid(at.Index(i), ip, fmt.Sprintf("'%s' must be the first and only value", v1.ClusterIPNone)))
			}
			continue
		}
		if all = append(all, legacyIP(at.Index(i), ip)...); i >= len(spec.IPFamilies) {
			continue
		}
		if a, ok := address(ip); ok && a.Is4() != (spec.IPFamilies[i] == v1.IPv4Protocol) {
			all = append(all, field.Invalid(at.Index(i), ip, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`",
				spec.IPFamilies[i], i)))
		}
	}
	if len(spec.ClusterIPs) == 2 {
		first, ok1 := address(spec.ClusterIPs[0])
		second, ok2 := address(spec.ClusterIPs[1])
		if ok1 && ok2 && first.Is4() == second.Is4() {
			all = append(all, field.Invalid(at, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
	}
	return all
}

// outside checks how a Service is reached from outside the cluster.
func outside(spec *v1.ServiceSpec) errs {
	var all errs
	for i, ip := range spec.ExternalIPs {
		at := specPath.Child("externalIPs").Index(i)
		all = append(all, legacyIP(at, ip)...)
		all = append(all, routable(at, ip)...)
	}
	balanced := spec.Type == v1.ServiceTypeLoadBalancer
	if !balanced {
		all = append(all, forbid(specPath, "may only be used when `type` is 'LoadBalancer'", []given{
			{"loadBalancerSourceRanges", len(spec.LoadBalancerSourceRanges) > 0}, {"loadBalancerClass", spec.LoadBalancerClass != nil},
			{"allocateLoadBalancerNodePorts", spec.AllocateLoadBalancerNodePorts != nil}})...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		all = append(all, legacyCIDR(specPath.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(cidr))...)
	}
	if c := spec.LoadBalancerClass; c != nil {
		all = append(all, invalid(specPath.Child("loadBalancerClass"), *c, validation.IsQualifiedName(*c))...)
	}
	external := balanced || spec.Type == v1.ServiceTypeNodePort || (spec.Type == v1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0)
	policy := specPath.Child("externalTrafficPolicy")
	switch {
	case external:
		all = append(all, mustBeOneOf(policy, spec.ExternalTrafficPolicy, v1.ServiceExternalTrafficPolicyCluster,
			v1.ServiceExternalTrafficPolicyLocal)...)
	case spec.ExternalTrafficPolicy != "":
		all = append(all, field.Invalid(policy, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	all = append(all, oneOfIfSet(specPath.Child("internalTrafficPolicy"), spec.InternalTrafficPolicy,
		v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)...)
	if port := spec.HealthCheckNodePort; port != 0 {
		all = append(all, portNumber(specPath.Child("healthCheckNodePort"), port)...)
		if !balanced || spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
			all = append(all, field.Invalid(specPath.Child("healthCheckNodePort"), port,
				"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
		}
	}
	return all
}

// ServiceUpdate keeps what others rely on: addresses and families once given,
// and the class of the load balancer.
func ServiceUpdate(changed, old *v1.Service) errs {
	all := Service(changed)
	now, before := &changed.Spec, &old.Spec
	if now.Type != v1.ServiceTypeExternalName && before.Type != v1.ServiceTypeExternalName {
		if len(before.ClusterIPs) > 0 && (len(now.ClusterIPs) == 0 || now.ClusterIPs[0] != before.ClusterIPs[0]) {
			all = append(all, field.Invalid(specPath.Child("clusterIPs").Index(0), now.ClusterIPs, "may not change once set"))
		}
		if len(before.ClusterIPs) > 1 && len(now.ClusterIPs) > 1 && now.ClusterIPs[1] != before.ClusterIPs[1] {
			all = append(all, field.Invalid(specPath.Child("clusterIPs").Index(1), now.ClusterIPs, "may not change once set"))
		}
		if len(before.IPFamilies) > 0 && (len(now.IPFamilies) == 0 || now.IPFamilies[0] != before.IPFamilies[0]) {
			all = append(all, field.Invalid(specPath.Child("ipFamilies").Index(0), now.IPFamilies, "may not change once set"))
		}
	}
	if now.Type == v1.ServiceTypeLoadBalancer && before.Type == v1.ServiceTypeLoadBalancer &&
		!equality.Semantic.DeepEqual(now.LoadBalancerClass, before.LoadBalancerClass) {
		all = append(all, field.Invalid(specPath.Child("loadBalancerClass"), now.LoadBalancerClass, "may not change once set"))
	}
	return all
}

func ServiceStatusUpdate(changed, _ *v1.Service) errs {
	at := field.NewPath("status", "loadBalancer", "ingress")
	ingress := changed.Status.LoadBalancer.Ingress
	if changed.Spec.Type != v1.ServiceTypeLoadBalancer && len(ingress) > 0 {
		return errs{field.Forbidden(at, "may only be used when `spec.type` is \"LoadBalancer\"")}
	}
	var all errs
	for i := range ingress {
		one := at.Index(i)
		if ip := ingress[i].IP; ip != "" {
			all = append(all, legacyIP(one.Child("ip"), ip)...)
			if ingress[i].IPMode == nil {
				all = append(all, field.Required(one.Child("ipMode"), "must be specified when `ip` is set"))
			}
		} else if ingress[i].IPMode != nil {
			all = append(all, field.Forbidden(one.Child("ipMode"), "may not be specified when `ip` is not set"))
		}
		all = append(all, oneOfIfSet(one.Child("ipMode"), ingress[i].IPMode, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)...)
		all = append(all, balancerHost(one.Child("hostname"), ingress[i].Hostname)...)
	}
	return all
}

// balancerHost wants a name, not an address, where a load balancer's name goes.
func balancerHost(p *field.Path, host string) errs {
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return errs{field.Invalid(p, host, "must be a DNS name, not an IP address")}
	}
	return invalid(p, host, validation.IsDNS1123Subdomain(host))
}
