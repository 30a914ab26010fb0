package api

import (
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// This file holds the objects every cluster starts with, as plain data.

//lint:file-ignore SA1019 Endpoints are deprecated, but old clients read this one

// systemNamespaces exist in every cluster.
var systemNamespaces = []string{
	metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault,
}

const (
	// apiServiceName is the service (and its endpoints) that leads to the API.
	apiServiceName = "kubernetes"
	apiServicePort = 443
	apiPortName    = "https"

	nodeCriticalPriority    = 2000001000
	clusterCriticalPriority = 2000000000
)

func systemPriorityClasses() []*schedulingv1.PriorityClass {
	class := func(name string, value int32, description string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description,
		}
	}
	return []*schedulingv1.PriorityClass{
		class("system-node-critical", nodeCriticalPriority, "For pods a node cannot do without: they are never moved away."),
		class("system-cluster-critical", clusterCriticalPriority, "For pods the cluster cannot do without: they may move, but must run."),
	}
}

// apiService is the service default/kubernetes on the first address of the
// service range.
func apiService(cidr string, port int32) (*corev1.Service, error) {
	ip, err := firstAddress(cidr)
	if err != nil {
		return nil, err
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiServiceName, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
		},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       ip.String(),
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name: apiPortName, Protocol: corev1.ProtocolTCP, Port: apiServicePort, TargetPort: intstr.FromInt32(port),
			}},
		},
	}, nil
}

// apiEndpoints is the endpoints object that leads to the server at address.
// With shared set, other servers' addresses in have stay.
func apiEndpoints(have *corev1.Endpoints, address net.IP, port int32, shared bool) *corev1.Endpoints {
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: apiServiceName, Namespace: metav1.NamespaceDefault}}
	var addresses []corev1.EndpointAddress
	if have != nil {
		want = have.DeepCopy()
		if shared && len(have.Subsets) == 1 {
			addresses = have.Subsets[0].Addresses
		}
	}
	mine := func(a corev1.EndpointAddress) bool { return a.IP == address.String() }
	if !slices.ContainsFunc(addresses, mine) {
		addresses = append(addresses, corev1.EndpointAddress{IP: address.String()})
	}
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[discoveryv1.LabelSkipMirror] = "true"
	want.Subsets = []corev1.EndpointSubset{{
		Addresses: addresses,
		Ports:     []corev1.EndpointPort{{Name: apiPortName, Port: port, Protocol: corev1.ProtocolTCP}},
	}}
	return want
}

// apiSlice is the same as an endpoint slice.
func apiSlice(have *discoveryv1.EndpointSlice, address net.IP, port int32, shared bool) *discoveryv1.EndpointSlice {
	want := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: apiServiceName, Namespace: metav1.NamespaceDefault},
		AddressType: addressType(address),
	}
	var endpoints []discoveryv1.Endpoint
	if have != nil {
		want = have.DeepCopy()
		if shared {
			endpoints = want.Endpoints
		}
	}
	mine := func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, address.String()) }
	if !slices.ContainsFunc(endpoints, mine) {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[discoveryv1.LabelServiceName] = apiServiceName
	want.Endpoints = endpoints
	want.Ports = []discoveryv1.EndpointPort{{
		Name: ptr.To(apiPortName), Port: ptr.To(port), Protocol: ptr.To(corev1.ProtocolTCP),
	}}
	return want
}

func addressType(ip net.IP) discoveryv1.AddressType {
	if ip.To4() != nil {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// firstAddress is the first usable address of a range: the one after the
// network's own.
func firstAddress(cidr string) (net.IP, error) {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil, fmt.Errorf("taking the first address of service range: %w", err)
	}
	ip := slices.Clone(network.IP)
	for i := len(ip) - 1; i >= 0; i-- {
		ip[i]++
		if ip[i] != 0 {
			break
		}
	}
	if !network.Contains(ip) {
		return nil, fmt.Errorf("taking the first address of service range %s: the range holds only one", cidr)
	}
	return ip, nil
}
