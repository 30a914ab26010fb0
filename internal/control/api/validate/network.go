package validate

import (
	"fmt"
	"net/netip"
	"strings"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of an EndpointSlice.
const (
	maxEndpoints     = 1000
	maxAddresses     = 100
	maxSlicePorts    = 20000
	maxTopologyHints = 8
)

func EndpointSlice(s *discovery.EndpointSlice) errs {
	all := mustBeOneOf(field.NewPath("addressType"), s.AddressType, discovery.AddressTypeIPv4, discovery.AddressTypeIPv6,
		discovery.AddressTypeFQDN)
	at := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > maxEndpoints {
		return append(all, field.TooMany(at, n, maxEndpoints))
	}
	for i := range s.Endpoints {
		all = append(all, endpoint(at.Index(i), &s.Endpoints[i], s.AddressType)...)
	}
	ports := field.NewPath("ports")
	if n := len(s.Ports); n > maxSlicePorts {
		return append(all, field.TooMany(ports, n, maxSlicePorts))
	}
	names := unique[string]{}
	for i, p := range s.Ports {
		one, name := ports.Index(i), deref(p.Name)
		if name != "" {
			all = append(all, invalid(one.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		all = append(all, names.add(one.Child("name"), name)...)
		if p.Protocol == nil {
			all = append(all, field.Required(one.Child("protocol"), ""))
		}
		all = append(all, oneOfIfSet(one.Child("protocol"), p.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
		if p.AppProtocol != nil {
			all = append(all, invalid(one.Child("appProtocol"), *p.AppProtocol, validation.IsQualifiedName(*p.AppProtocol))...)
		}
	}
	return all
}

func endpoint(p *field.Path, e *discovery.Endpoint, kind discovery.AddressType) errs {
	at := p.Child("addresses")
	var all errs
	switch n := len(e.Addresses); {
	case n == 0:
		all = append(all, field.Required(at, "must contain at least 1 address"))
	case n > maxAddresses:
		all = append(all, field.TooMany(at, n, maxAddresses))
	}
	for i, text := range e.Addresses {
		one := at.Index(i)
		switch kind {
		case discovery.AddressTypeIPv4, discovery.AddressTypeIPv6:
			all = append(all, legacyIP(one, text)...)
			if ip, ok := address(text); ok && ip.Is4() != (kind == discovery.AddressTypeIPv4) {
				all = append(all, field.Invalid(one, text, fmt.Sprintf("must be an %s address", kind)))
			} else {
				all = append(all, routable(one, text)...)
			}
		case discovery.AddressTypeFQDN:
			all = append(all, validation.IsFullyQualifiedDomainName(one, text)...)
		}
	}
	if e.NodeName != nil {
		all = append(all, invalid(p.Child("nodeName"), *e.NodeName, isSubdomain(*e.NodeName))...)
	}
	if e.Hostname != nil {
		all = append(all, invalid(p.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
	}
	if h := e.Hints; h != nil {
		if n := len(h.ForZones); n > maxTopologyHints {
			all = append(all, field.TooMany(p.Child("hints", "forZones"), n, maxTopologyHints))
		}
		zones := unique[string]{}
		for i, z := range h.ForZones {
			one := p.Child("hints", "forZones").Index(i).Child("name")
			all = append(all, zones.add(one, z.Name)...)
			all = append(all, invalid(one, z.Name, validation.IsValidLabelValue(z.Name))...)
		}
		if n := len(h.ForNodes); n > maxTopologyHints {
			all = append(all, field.TooMany(p.Child("hints", "forNodes"), n, maxTopologyHints))
		}
		nodes := unique[string]{}
		for i, n := range h.ForNodes {
			one := p.Child("hints", "forNodes").Index(i).Child("name")
			all = append(all, nodes.add(one, n.Name)...)
			all = append(all, invalid(one, n.Name, isSubdomain(n.Name))...)
		}
	}
	return all
}

func Lease(l *coordination.Lease) errs {
	var all errs
	if d := l.Spec.LeaseDurationSeconds; d != nil {
		all = append(all, positive(specPath.Child("leaseDurationSeconds"), *d)...)
	}
	all = append(all, notNegativeIfSet(specPath.Child("leaseTransitions"), l.Spec.LeaseTransitions)...)
	if s := l.Spec.Strategy; s != nil {
		all = append(all, invalid(specPath.Child("strategy"), string(*s), validation.IsQualifiedName(string(*s)))...)
	}
	if holder := l.Spec.PreferredHolder; deref(holder) != "" && deref(l.Spec.Strategy) == "" {
		all = append(all, field.Forbidden(specPath.Child("preferredHolder"), "may only be specified when `strategy` is defined"))
	}
	return all
}

func NetworkPolicy(n *networking.NetworkPolicy) errs {
	all := selector(specPath.Child("podSelector"), &n.Spec.PodSelector)
	for i, rule := range n.Spec.Ingress {
		at := specPath.Child("ingress").Index(i)
		all = append(all, policyPorts(at.Child("ports"), rule.Ports)...)
		all = append(all, policyPeers(at.Child("from"), rule.From)...)
	}
	for i, rule := range n.Spec.Egress {
		at := specPath.Child("egress").Index(i)
		all = append(all, policyPorts(at.Child("ports"), rule.Ports)...)
		all = append(all, policyPeers(at.Child("to"), rule.To)...)
	}
	if n := len(n.Spec.PolicyTypes); n > 2 {
		return append(all, field.Invalid(specPath.Child("policyTypes"), n, "may not specify more than two policyTypes"))
	}
	for i, t := range n.Spec.PolicyTypes {
		all = append(all, oneOf(specPath.Child("policyTypes").Index(i), t, networking.PolicyTypeIngress, networking.PolicyTypeEgress)...)
	}
	return all
}

func policyPorts(p *field.Path, ports []networking.NetworkPolicyPort) errs {
	var all errs
	for i, port := range ports {
		at := p.Index(i)
		all = append(all, oneOfIfSet(at.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
		if port.Port != nil {
			all = append(all, portOrName(at.Child("port"), *port.Port)...)
		}
		if end := port.EndPort; end != nil {
			switch {
			case port.Port == nil:
				all = append(all, field.Required(at.Child("port"), "must be specified when `endPort` is specified"))
			case port.Port.Type == intstr.String:
				all = append(all, field.Invalid(at.Child("endPort"), *end, "may not be specified when `port` is non-numeric"))
			case *end < port.Port.IntVal:
				all = append(all, field.Invalid(at.Child("endPort"), *end, "must be greater than or equal to `port`"))
			}
			all = append(all, portNumber(at.Child("endPort"), *end)...)
		}
	}
	return all
}

func policyPeers(p *field.Path, peers []networking.NetworkPolicyPeer) errs {
	var all errs
	for i, peer := range peers {
		at := p.Index(i)
		all = append(all, selector(at.Child("podSelector"), peer.PodSelector)...)
		all = append(all, selector(at.Child("namespaceSelector"), peer.NamespaceSelector)...)
		switch {
		case peer.IPBlock == nil && peer.PodSelector == nil && peer.NamespaceSelector == nil:
			all = append(all, field.Required(at, "must specify a peer"))
		case peer.IPBlock != nil && (peer.PodSelector != nil || peer.NamespaceSelector != nil):
			all = append(all, field.Forbidden(at, "may not specify both ipBlock and another peer"))
		case peer.IPBlock != nil:
			all = append(all, ipBlock(at.Child("ipBlock"), peer.IPBlock)...)
		}
	}
	return all
}

func ipBlock(p *field.Path, b *networking.IPBlock) errs {
	if b.CIDR == "" {
		return errs{field.Required(p.Child("cidr"), "")}
	}
	all := legacyCIDR(p.Child("cidr"), b.CIDR)
	outer, err := netip.ParsePrefix(b.CIDR)
	for i, except := range b.Except {
		at := p.Child("except").Index(i)
		all = append(all, legacyCIDR(at, except)...)
		inner, bad := netip.ParsePrefix(except)
		if err == nil && bad == nil && (!outer.Contains(inner.Addr()) || inner.Bits() <= outer.Bits()) {
			all = append(all, field.Invalid(at, except, "must be a strict subset of `cidr`"))
		}
	}
	return all
}

// Ingress refuses two ways of naming the class in a new Ingress.
func Ingress(i *networking.Ingress) errs {
	all := ingress(i)
	if value, ok := i.Annotations[ingressClassAnnotation]; ok && i.Spec.IngressClassName != nil {
		at := field.NewPath("annotations").Child(ingressClassAnnotation)
		all = append(all, field.Invalid(at, value, "can not be set when the class field is also set"))
	}
	return all
}

// ingressClassAnnotation named the class before there was a field for it.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

func ingress(i *networking.Ingress) errs {
	s := &i.Spec
	var all errs
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		all = append(all, field.Invalid(specPath, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		all = append(all, backend(specPath.Child("defaultBackend"), s.DefaultBackend)...)
	}
	if s.IngressClassName != nil {
		all = append(all, invalid(specPath.Child("ingressClassName"), *s.IngressClassName, isSubdomain(*s.IngressClassName))...)
	}
	for k, tls := range s.TLS {
		for n, host := range tls.Hosts {
			all = append(all, ingressHost(specPath.Child("tls").Index(k).Child("hosts").Index(n), host)...)
		}
		if tls.SecretName != "" {
			all = append(all, invalid(specPath.Child("tls").Index(k).Child("secretName"), tls.SecretName, isSubdomain(tls.SecretName))...)
		}
	}
	for k, rule := range s.Rules {
		at := specPath.Child("rules").Index(k)
		if rule.Host != "" {
			all = append(all, ingressHost(at.Child("host"), rule.Host)...)
		}
		if rule.HTTP == nil {
			continue
		}
		paths := at.Child("http", "paths")
		if len(rule.HTTP.Paths) == 0 {
			all = append(all, field.Required(paths, ""))
		}
		for n := range rule.HTTP.Paths {
			all = append(all, ingressPath(paths.Index(n), &rule.HTTP.Paths[n])...)
		}
	}
	return all
}

func ingressHost(p *field.Path, host string) errs {
	if _, err := netip.ParseAddr(host); err == nil {
		return errs{field.Invalid(p, host, "must be a DNS name, not an IP address")}
	}
	if strings.Contains(host, "*") {
		return invalid(p, host, validation.IsWildcardDNS1123Subdomain(host))
	}
	return invalid(p, host, validation.IsDNS1123Subdomain(host))
}

func ingressPath(p *field.Path, path *networking.HTTPIngressPath) errs {
	var all errs
	switch {
	case path.PathType == nil:
		all = append(all, field.Required(p.Child("pathType"), "pathType must be specified"))
	case *path.PathType == networking.PathTypeExact || *path.PathType == networking.PathTypePrefix:
		if !strings.HasPrefix(path.Path, "/") {
			all = append(all, field.Invalid(p.Child("path"), path.Path, "must be an absolute path"))
		}
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(path.Path, bad) {
				all = append(all, field.Invalid(p.Child("path"), path.Path, fmt.Sprintf("must not contain '%s'", bad)))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(path.Path, bad) {
				all = append(all, field.Invalid(p.Child("path"), path.Path, fmt.Sprintf("cannot end with '%s'", bad)))
			}
		}
	case *path.PathType == networking.PathTypeImplementationSpecific:
		if path.Path != "" && !strings.HasPrefix(path.Path, "/") {
			all = append(all, field.Invalid(p.Child("path"), path.Path, "must be an absolute path"))
		}
	default:
		all = append(all, oneOf(p.Child("pathType"), *path.PathType, networking.PathTypeExact, networking.PathTypePrefix,
			networking.PathTypeImplementationSpecific)...)
	}
	return append(all, backend(p.Child("backend"), &path.Backend)...)
}

func backend(p *field.Path, b *networking.IngressBackend) errs {
	switch {
	case b.Resource != nil && b.Service != nil:
		return errs{field.Invalid(p, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return typedReference(p.Child("resource"), b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name)
	case b.Service == nil:
		return errs{field.Required(p, "must specify a service or a resource backend")}
	}
	at, port := p.Child("service"), b.Service.Port
	all := named(at.Child("name"), b.Service.Name, validation.IsDNS1123Label)
	switch {
	case port.Name != "" && port.Number != 0:
		all = append(all, field.Invalid(at.Child("port"), "", "cannot set both port name & port number"))
	case port.Name != "":
		all = append(all, invalid(at.Child("port", "name"), port.Name, validation.IsValidPortName(port.Name))...)
	case port.Number != 0:
		all = append(all, portNumber(at.Child("port", "number"), port.Number)...)
	default:
		all = append(all, field.Required(at, "port name or number is required"))
	}
	return all
}

// typedReference checks a reference to an object of any kind.
func typedReference(p *field.Path, group *string, kind, name string) errs {
	var all errs
	if group != nil {
		all = append(all, invalid(p.Child("apiGroup"), *group, validation.IsDNS1123Subdomain(*group))...)
	}
	all = append(all, named(p.Child("kind"), kind, isPathSegment)...)
	return append(all, named(p.Child("name"), name, isPathSegment)...)
}

func IngressStatusUpdate(changed, _ *networking.Ingress) errs {
	var all errs
	for i, in := range changed.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if in.IP != "" {
			all = append(all, legacyIP(at.Child("ip"), in.IP)...)
		}
		all = append(all, balancerHost(at.Child("hostname"), in.Hostname)...)
	}
	return all
}

func IngressClass(c *networking.IngressClass) errs {
	all := ingressController(c.Spec.Controller)
	p := c.Spec.Parameters
	if p == nil {
		return all
	}
	at := specPath.Child("parameters")
	all = append(all, typedReference(at, p.APIGroup, p.Kind, p.Name)...)
	if p.Scope == nil {
		return append(all, field.Required(at.Child("scope"), ""))
	}
	all = append(all, oneOf(at.Child("scope"), *p.Scope, networking.IngressClassParametersReferenceScopeCluster,
		networking.IngressClassParametersReferenceScopeNamespace)...)
	switch inNamespace := *p.Scope == networking.IngressClassParametersReferenceScopeNamespace; {
	case inNamespace && deref(p.Namespace) == "":
		all = append(all, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case inNamespace:
		all = append(all, invalid(at.Child("namespace"), *p.Namespace, apivalidation.ValidateNamespaceName(*p.Namespace, false))...)
	case !inNamespace && p.Namespace != nil:
		all = append(all, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	}
	return all
}

// maxController bounds the name of an IngressClass's controller.
const maxController = 250

func ingressController(name string) errs {
	at := specPath.Child("controller")
	var all errs
	if len(name) > maxController {
		all = append(all, field.TooLong(at, "", maxController))
	}
	return append(all, validation.IsDomainPrefixedPath(at, name)...)
}

func ServiceCIDR(c *networking.ServiceCIDR) errs {
	at := specPath.Child("cidrs")
	switch n := len(c.Spec.CIDRs); {
	case n == 0:
		return errs{field.Required(at, "at least one CIDR required")}
	case n > 2:
		return errs{field.TooMany(at, n, 2)}
	}
	var all errs
	families := map[bool]int{}
	for i, cidr := range c.Spec.CIDRs {
		all = append(all, validation.IsValidCIDR(at.Index(i), cidr)...)
		if prefix, err := netip.ParsePrefix(cidr); err == nil {
			families[prefix.Addr().Is4()]++
		}
	}
	if families[true] > 1 || families[false] > 1 {
		all = append(all, field.Invalid(at, c.Spec.CIDRs,
			"may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/96"))
	}
	return all
}

// ServiceCIDRUpdate lets a range of the other family be added.
func ServiceCIDRUpdate(changed, old *networking.ServiceCIDR) errs {
	now, before := changed.Spec.CIDRs, old.Spec.CIDRs
	if len(before) == 1 && len(now) == 2 && now[0] == before[0] {
		return ServiceCIDR(changed)
	}
	return immutable(specPath.Child("cidrs"), now, before)
}

// IPAddressName wants the one spelling of an address that serves as its name.
func IPAddressName(name string, _ bool) []string {
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return []string{"must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"}
	}
	if ip.String() != name || ip.Is4In6() || ip.Zone() != "" {
		return []string{fmt.Sprintf("must be in canonical form (%q)", ip.WithZone("").Unmap())}
	}
	return nil
}

func IPAddress(a *networking.IPAddress) errs {
	at, ref := specPath.Child("parentRef"), a.Spec.ParentRef
	if ref == nil {
		return errs{field.Required(at, "")}
	}
	var all errs
	for _, part := range []struct{ name, value string }{{"resource", ref.Resource}, {"name", ref.Name}} {
		all = append(all, named(at.Child(part.name), part.value, isPathSegment)...)
	}
	if ref.Group != "" {
		all = append(all, invalid(at.Child("group"), ref.Group, validation.IsDNS1123Subdomain(ref.Group))...)
	}
	if ref.Namespace != "" {
		all = append(all, invalid(at.Child("namespace"), ref.Namespace, isPathSegment(ref.Namespace))...)
	}
	return all
}

func EndpointSliceUpdate(changed, old *discovery.EndpointSlice) errs {
	return append(EndpointSlice(changed), immutable(field.NewPath("addressType"), changed.AddressType, old.AddressType)...)
}

func IngressClassUpdate(changed, old *networking.IngressClass) errs {
	return append(IngressClass(changed), immutable(specPath.Child("controller"), changed.Spec.Controller, old.Spec.Controller)...)
}

func IPAddressUpdate(changed, old *networking.IPAddress) errs {
	return append(IPAddress(changed), immutable(specPath.Child("parentRef"), changed.Spec.ParentRef, old.Spec.ParentRef)...)
}

func IngressUpdate(changed, _ *networking.Ingress) errs { return ingress(changed) }
