package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

const nodeName = "bench"

// api serves the lists and watches a proxy asks for, and nothing else. It
// stands for an API server so that only the proxy is measured.
type api struct {
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice

	mu      sync.Mutex
	version int
	watches []chan watch.Event
}

// clusterIP and endpoint number addresses without overlap.
func clusterIP(i int) string {
	return netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}).String()
}

func endpoint(service, n int) string {
	k := service*64 + n
	return netip.AddrFrom4([4]byte{11 + byte(k>>24), byte(k >> 16), byte(k >> 8), byte(k)}).String()
}

func newAPI(services, endpoints int) *api {
	a := &api{version: 1}
	for i := range services {
		name := fmt.Sprintf("service-%05d", i)
		ip := clusterIP(i)
		a.services = append(a.services, corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, ResourceVersion: "1",
			UID: "0"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}})
		a.slices = append(a.slices, slice(i, endpoints, 1))
	}
	return a
}

func slice(service, endpoints, version int) discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%05d", service)
	s := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name + "-abcde",
		ResourceVersion: fmt.Sprint(version), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080)),
			Protocol: ptr.To(corev1.ProtocolTCP)}}}
	for e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{endpoint(service, e)},
			NodeName:   ptr.To(fmt.Sprint("node-", e%100)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "bench", Name: fmt.Sprintf("%s-%d", name, e)}})
	}
	return s
}

// change sends one changed slice to everybody who watches.
func (a *api) change(service, endpoints int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	s := slice(service, endpoints, a.version)
	for _, w := range a.watches {
		w <- watch.Event{Type: watch.Modified, Object: &s}
	}
}

func (a *api) serve(l net.Listener) { _ = http.Serve(l, a) }

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r, resource)
		return
	}
	list := metav1.ListMeta{ResourceVersion: "1"}
	switch resource {
	case "services":
		write(w, r, corev1.SchemeGroupVersion, &corev1.ServiceList{ListMeta: list, Items: a.services})
	case "endpointslices":
		write(w, r, discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSliceList{ListMeta: list, Items: a.slices})
	case "nodes":
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "1"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}}
		write(w, r, corev1.SchemeGroupVersion, &corev1.NodeList{ListMeta: list, Items: []corev1.Node{n}})
	case "servicecidrs":
		write(w, r, networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDRList{ListMeta: list})
	case "v1": // discovery of a group
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "networking.k8s.io/v1",
			APIResources: []metav1.APIResource{{Name: "servicecidrs", Kind: "ServiceCIDR"}}})
	default:
		http.Error(w, "the bench has no "+r.URL.Path, http.StatusNotFound)
	}
}

// codec picks the encoding the client asks for.
func codec(r *http.Request, gv schema.GroupVersion) (string, runtime.Encoder, runtime.StreamSerializerInfo) {
	mediaType := "application/json"
	if strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf") {
		mediaType = "application/vnd.kubernetes.protobuf"
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	return mediaType, scheme.Codecs.EncoderForVersion(info.Serializer, gv), *info.StreamSerializer
}

func write(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion, o runtime.Object) {
	mediaType, enc, _ := codec(r, gv)
	w.Header().Set("Content-Type", mediaType)
	_ = enc.Encode(o, w)
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	events := make(chan watch.Event, 100)
	if resource == "endpointslices" {
		a.mu.Lock()
		a.watches = append(a.watches, events)
		a.mu.Unlock()
	}
	mediaType, _, stream := codec(r, discoveryv1.SchemeGroupVersion)
	w.Header().Set("Content-Type", mediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	// The informer may ask for the state as the first events of its watch.
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.initial(w, r, resource, stream)
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			send(w, r, stream, e)
		}
	}
}

func (a *api) initial(w http.ResponseWriter, r *http.Request, resource string, stream runtime.StreamSerializerInfo) {
	var end runtime.Object
	meta := metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch resource {
	case "services":
		for i := range a.services {
			send(w, r, stream, watch.Event{Type: watch.Added, Object: &a.services[i]})
		}
		end = &corev1.Service{ObjectMeta: meta}
	case "endpointslices":
		for i := range a.slices {
			send(w, r, stream, watch.Event{Type: watch.Added, Object: &a.slices[i]})
		}
		end = &discoveryv1.EndpointSlice{ObjectMeta: meta}
	case "nodes":
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "1"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}}
		send(w, r, stream, watch.Event{Type: watch.Added, Object: n})
		end = &corev1.Node{ObjectMeta: meta}
	case "servicecidrs":
		end = &networkingv1.ServiceCIDR{ObjectMeta: meta}
	}
	send(w, r, stream, watch.Event{Type: watch.Bookmark, Object: end})
}

// send writes one framed event.
func send(w http.ResponseWriter, r *http.Request, stream runtime.StreamSerializerInfo, e watch.Event) {
	gvks, _, err := scheme.Scheme.ObjectKinds(e.Object)
	if err != nil {
		panic(err)
	}
	_, enc, _ := codec(r, gvks[0].GroupVersion())
	object, err := runtime.Encode(enc, e.Object)
	if err != nil {
		panic(err)
	}
	out := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: object}}
	framed := stream.Framer.NewFrameWriter(w)
	if err := scheme.Codecs.EncoderForVersion(stream.Serializer, metav1.Unversioned).Encode(out, framed); err != nil {
		return // the client has gone
	}
	w.(http.Flusher).Flush()
}
