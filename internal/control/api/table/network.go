package table

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var Service = of(func(now time.Time, s *v1.Service) []any {
	return []any{s.Name, string(s.Spec.Type), clusterIP(s), externalIP(s), servicePorts(s.Spec.Ports), created(now, s),
		labels.FormatLabels(s.Spec.Selector)}
}, nameColumn,
	text("Type", v1.ServiceSpec{}.SwaggerDoc()["type"]),
	text("Cluster-IP", v1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
	text("External-IP", v1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
	text("Port(s)", v1.ServiceSpec{}.SwaggerDoc()["ports"]),
	ageColumn,
	wide("Selector", v1.ServiceSpec{}.SwaggerDoc()["selector"]))

func clusterIP(s *v1.Service) string {
	if len(s.Spec.ClusterIPs) > 0 {
		return s.Spec.ClusterIPs[0]
	}
	return or(s.Spec.ClusterIP, none)
}

func externalIP(s *v1.Service) string {
	switch s.Spec.Type {
	case v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort:
		return joined(s.Spec.ExternalIPs)
	case v1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case v1.ServiceTypeLoadBalancer:
		ingress := s.Status.LoadBalancer.Ingress
		ips, hosts := make([]string, len(ingress)), make([]string, len(ingress))
		for i := range ingress {
			ips[i], hosts[i] = ingress[i].IP, ingress[i].Hostname
		}
		all := s.Spec.ExternalIPs
		if balancer := balancerAddresses(ips, hosts); balancer != "" {
			all = append([]string{balancer}, all...)
		}
		return or(strings.Join(all, ","), "<pending>")
	}
	return unknown
}

func servicePorts(ports []v1.ServicePort) string {
	cells := make([]string, len(ports))
	for i, p := range ports {
		cells[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			cells[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return joined(cells)
}

var Endpoints = of(func(now time.Time, e *v1.Endpoints) []any {
	var all []string
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		for k := range subset.Addresses {
			ip := subset.Addresses[k].IP
			if len(subset.Ports) == 0 {
				all = append(all, ip)
			}
			for _, port := range subset.Ports {
				all = append(all, net.JoinHostPort(ip, strconv.Itoa(int(port.Port))))
			}
		}
	}
	return []any{e.Name, some(all, none), created(now, e)}
}, nameColumn, text("Endpoints", v1.Endpoints{}.SwaggerDoc()["subsets"]), ageColumn)

var EndpointSlice = of(func(now time.Time, e *discovery.EndpointSlice) []any {
	ports := make([]string, len(e.Ports))
	for i, p := range e.Ports {
		switch {
		case p.Port != nil:
			ports[i] = strconv.Itoa(int(*p.Port))
		default:
			ports[i] = or(deref(p.Name), "*")
		}
	}
	var addresses []string
	for i := range e.Endpoints {
		addresses = append(addresses, e.Endpoints[i].Addresses...)
	}
	return []any{e.Name, string(e.AddressType), some(ports, unset), some(addresses, unset), created(now, e)}
}, nameColumn,
	text("AddressType", discovery.EndpointSlice{}.SwaggerDoc()["addressType"]),
	text("Ports", discovery.EndpointSlice{}.SwaggerDoc()["ports"]),
	text("Endpoints", discovery.EndpointSlice{}.SwaggerDoc()["endpoints"]), ageColumn)

var Lease = of(func(now time.Time, l *coordination.Lease) []any {
	return []any{l.Name, deref(l.Spec.HolderIdentity), created(now, l)}
}, nameColumn, text("Holder", coordination.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), ageColumn)

var Ingress = of(func(now time.Time, i *networking.Ingress) []any {
	ports := "80"
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	ingress := i.Status.LoadBalancer.Ingress
	ips, hosts := make([]string, len(ingress)), make([]string, len(ingress))
	for k := range ingress {
		ips[k], hosts[k] = ingress[k].IP, ingress[k].Hostname
	}
	return []any{i.Name, or(deref(i.Spec.IngressClassName), none), ingressHosts(i.Spec.Rules), balancerAddresses(ips, hosts), ports,
		created(now, i)}
}, nameColumn, text("Class", "The ingress class that serves it."), text("Hosts", "Hosts with rules."),
	text("Address", "Where it is reached."), text("Ports", "Ports it listens on."), ageColumn)

func ingressHosts(rules []networking.IngressRule) string {
	var hosts []string
	for _, r := range rules {
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	return some(hosts, "*")
}

var IngressClass = of(func(now time.Time, c *networking.IngressClass) []any {
	parameters := none
	if p := c.Spec.Parameters; p != nil {
		parameters = p.Kind
		if p.APIGroup != nil {
			parameters += "." + *p.APIGroup
		}
		parameters += "/" + p.Name
	}
	return []any{c.Name, c.Spec.Controller, parameters, created(now, c)}
}, nameColumn, text("Controller", "The controller that serves the class."), text("Parameters", "Where the class is configured."), ageColumn)

var NetworkPolicy = of(func(now time.Time, p *networking.NetworkPolicy) []any {
	return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), created(now, p)}
}, nameColumn, text("Pod-Selector", networking.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]), ageColumn)

var ServiceCIDR = of(func(now time.Time, c *networking.ServiceCIDR) []any {
	return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), created(now, c)}
}, nameColumn, text("CIDRs", networking.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn)

var IPAddress = of(func(_ time.Time, a *networking.IPAddress) []any {
	parent := none
	if p := a.Spec.ParentRef; p != nil {
		resource := schema.GroupResource{Group: p.Group, Resource: p.Resource}
		parent = resource.String() + "/" + p.Namespace + "/" + p.Name
	}
	return []any{a.Name, parent}
}, nameColumn, text("ParentRef", networking.IPAddressSpec{}.SwaggerDoc()["parentRef"]))
