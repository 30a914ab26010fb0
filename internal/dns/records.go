package dns

import (
	"net/netip"
	"slices"
	"strings"

	mdns "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// key names a namespaced object.
type key struct{ namespace, name string }

// service is a Service and its slices. The objects belong to the informers
// and are only read; nothing of them is copied, so that records cost little
// beside the informers that already hold them.
type service struct {
	object *v1.Service // nil while only slices are known
	slices []*discovery.EndpointSlice
}

func (s *service) headless() bool {
	return s.object != nil && s.object.Spec.Type != v1.ServiceTypeExternalName && s.object.Spec.ClusterIP == v1.ClusterIPNone
}

// records are the names of one cluster. They are not safe for concurrent use:
// the caller orders changes and answers.
type records struct {
	zone   string // lower case, with final dot
	serial uint32

	services   map[key]*service
	namespaces map[string]int // how many Services each holds
	owner      map[key]key    // slice -> Service
	byIP       map[netip.Addr][]key
	// endpointIPs are the addresses behind headless Services, for PTR, with
	// the Service of each slice that holds one.
	endpointIPs map[netip.Addr][]key

	verifyPods bool
	pods       map[key][]netip.Addr
	podIPs     map[podIP]int
}

type podIP struct {
	namespace string
	ip        netip.Addr
}

// newRecords are the records of an empty cluster. With verifyPods only pods
// given by SetPod have names.
func newRecords(domain string, verifyPods bool) *records {
	return &records{
		zone:     mdns.CanonicalName(domain),
		services: map[key]*service{}, namespaces: map[string]int{}, owner: map[key]key{},
		byIP: map[netip.Addr][]key{}, endpointIPs: map[netip.Addr][]key{},
		verifyPods: verifyPods, pods: map[key][]netip.Addr{}, podIPs: map[podIP]int{},
	}
}

// SetService adds or replaces a Service.
func (r *records) SetService(obj *v1.Service) {
	k := key{obj.Namespace, obj.Name}
	s := r.services[k]
	if s == nil {
		s = &service{}
		r.services[k] = s
	}
	r.drop(k, s)
	s.object = obj
	r.namespaces[k.namespace]++
	for _, ip := range clusterIPs(obj) {
		r.byIP[ip] = append(r.byIP[ip], k)
	}
	if s.headless() {
		for _, sl := range s.slices {
			r.indexEndpoints(k, sl)
		}
	}
	r.serial++
}

// DeleteService removes a Service; its slices stay until they are deleted.
func (r *records) DeleteService(namespace, name string) {
	k := key{namespace, name}
	s := r.services[k]
	if s == nil || s.object == nil {
		return
	}
	r.drop(k, s)
	r.forget(k, s)
	r.serial++
}

// drop takes what the Service object itself put into the indexes out again.
func (r *records) drop(k key, s *service) {
	if s.object == nil {
		return
	}
	for _, ip := range clusterIPs(s.object) {
		remove(r.byIP, ip, k)
	}
	if s.headless() {
		for _, sl := range s.slices {
			r.unindexEndpoints(k, sl)
		}
	}
	if r.namespaces[k.namespace]--; r.namespaces[k.namespace] == 0 {
		delete(r.namespaces, k.namespace)
	}
	s.object = nil
}

func (r *records) forget(k key, s *service) {
	if s.object == nil && len(s.slices) == 0 {
		delete(r.services, k)
	}
}

// SetSlice adds or replaces an EndpointSlice; the label
// kubernetes.io/service-name says whose it is.
func (r *records) SetSlice(obj *discovery.EndpointSlice) {
	r.DeleteSlice(obj.Namespace, obj.Name)
	name := obj.Labels[discovery.LabelServiceName]
	if name == "" || obj.AddressType == discovery.AddressTypeFQDN {
		return
	}
	k := key{obj.Namespace, name}
	s := r.services[k]
	if s == nil {
		s = &service{}
		r.services[k] = s
	}
	at, _ := slices.BinarySearchFunc(s.slices, obj.Name, func(e *discovery.EndpointSlice, name string) int {
		return strings.Compare(e.Name,
			name)
	})
	s.slices = slices.Insert(s.slices, at, obj)
	r.owner[key{obj.Namespace, obj.Name}] = k
	if s.headless() {
		r.indexEndpoints(k, obj)
	}
	r.serial++
}

// DeleteSlice removes an EndpointSlice.
func (r *records) DeleteSlice(namespace, name string) {
	id := key{namespace, name}
	k, ok := r.owner[id]
	if !ok {
		return
	}
	delete(r.owner, id)
	s := r.services[k]
	at := slices.IndexFunc(s.slices, func(e *discovery.EndpointSlice) bool { return e.Name == name })
	if s.headless() {
		r.unindexEndpoints(k, s.slices[at])
	}
	s.slices = slices.Delete(s.slices, at, at+1)
	r.forget(k, s)
	r.serial++
}

func (r *records) indexEndpoints(k key, sl *discovery.EndpointSlice) {
	eachEndpoint(sl, func(_ *discovery.Endpoint, ip netip.Addr) bool {
		r.endpointIPs[ip] = append(r.endpointIPs[ip], k)
		return true
	})
}

func (r *records) unindexEndpoints(k key, sl *discovery.EndpointSlice) {
	eachEndpoint(sl, func(_ *discovery.Endpoint, ip netip.Addr) bool {
		remove(r.endpointIPs, ip, k)
		return true
	})
}

// remove takes one k out of index[ip].
func remove(index map[netip.Addr][]key, ip netip.Addr, k key) {
	list := index[ip]
	if at := slices.Index(list, k); at >= 0 {
		list = slices.Delete(list, at, at+1)
	}
	if len(list) == 0 {
		delete(index, ip)
		return
	}
	index[ip] = list
}

// SetPod adds or replaces a pod's addresses. Without verifyPods it does
// nothing.
func (r *records) SetPod(obj *v1.Pod) {
	if !r.verifyPods {
		return
	}
	r.DeletePod(obj.Namespace, obj.Name)
	if podutil.Terminal(obj) {
		return // its address may be another pod's already
	}
	var ips []netip.Addr
	for _, p := range obj.Status.PodIPs {
		if ip, err := netip.ParseAddr(p.IP); err == nil {
			ips = append(ips, ip)
			r.podIPs[podIP{obj.Namespace, ip}]++
		}
	}
	if ips != nil {
		r.pods[key{obj.Namespace, obj.Name}] = ips
	}
}

// DeletePod removes a pod.
func (r *records) DeletePod(namespace, name string) {
	k := key{namespace, name}
	for _, ip := range r.pods[k] {
		at := podIP{namespace, ip}
		if r.podIPs[at]--; r.podIPs[at] == 0 {
			delete(r.podIPs, at)
		}
	}
	delete(r.pods, k)
}

// serverIPs are the addresses of the cluster's DNS Service.
func (r *records) serverIPs() []netip.Addr {
	if s := r.services[key{Namespace, ServiceName}]; s != nil && s.object != nil {
		return clusterIPs(s.object)
	}
	return nil
}

// clusterIPs are a Service's virtual addresses; a headless or external one has
// none.
func clusterIPs(s *v1.Service) []netip.Addr {
	if s.Spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	list := s.Spec.ClusterIPs
	if len(list) == 0 && s.Spec.ClusterIP != "" {
		list = []string{s.Spec.ClusterIP}
	}
	out := make([]netip.Addr, 0, len(list))
	for _, text := range list {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

// eachEndpoint calls f with every ready endpoint of a slice that has an
// address, until f returns false. Only the first address of an endpoint
// counts, as the API says. An unknown readiness is ready; the controller sets
// ready for all endpoints of a Service with publishNotReadyAddresses.
func eachEndpoint(sl *discovery.EndpointSlice, f func(e *discovery.Endpoint, ip netip.Addr) bool) bool {
	for i := range sl.Endpoints {
		e := &sl.Endpoints[i]
		if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			continue
		}
		if !f(e, ip) {
			return false
		}
	}
	return true
}

// label is an endpoint's name below its Service: the pod's hostname if it
// asked for one, else its address with dashes.
func label(e *discovery.Endpoint, ip netip.Addr) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return *e.Hostname
	}
	return dashed(ip)
}

func dashed(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.String())
}
