package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// EndpointAddressRestriction keeps tenants from leading a Service of theirs to
// pods of another namespace (CVE-2021-25740, kubernetes/kubernetes#103675):
// anyone who may write endpoints in a namespace only may name, of the addresses of
// the cluster's pods, those of the same namespace.
const EndpointAddressRestriction = "EndpointAddressRestriction"

var (
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
	slicesResource    = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// dnsPublisher says which nodes answer DNS: their addresses are its endpoints.
// It has no rights beyond kube-system, where it may lead to nodes.
const dnsPublisher = "system:serviceaccount:kube-system:dns-publisher"

// podIPIndex finds pods by address.
const podIPIndex = "admit/podIP"

type endpointRestriction struct {
	*admission.Handler
	pods       cache.Indexer
	nodes      corelisters.NodeLister
	authorizer authorizer.UnconditionalAuthorizer
}

func newEndpointAddressRestriction(io.Reader) (admission.Interface, error) {
	return &endpointRestriction{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (e *endpointRestriction) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) {
	e.authorizer = a
}

func (e *endpointRestriction) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	pods, nodes := f.Core().V1().Pods().Informer(), f.Core().V1().Nodes()
	// A second server of one process finds the index there.
	if _, there := pods.GetIndexer().GetIndexers()[podIPIndex]; !there {
		if err := pods.AddIndexers(cache.Indexers{podIPIndex: addressesOf}); err != nil {
			return
		}
	}
	e.pods, e.nodes = pods.GetIndexer(), nodes.Lister()
	e.SetReadyFunc(allSynced(pods, nodes.Informer()))
}

func addressesOf(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.HostNetwork {
		return nil, nil
	}
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips, nil
}

func (e *endpointRestriction) ValidateInitialization() error {
	if e.pods == nil || e.authorizer == nil {
		return errors.New(EndpointAddressRestriction + " needs an informer factory and an authorizer")
	}
	return nil
}

func (e *endpointRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if a.GetSubresource() != "" || resource != endpointsResource && resource != slicesResource {
		return nil
	}
	had := endpointAddresses(a.GetOldObject())
	var foreign []string
	for _, address := range endpointAddresses(a.GetObject()) {
		if !slices.Contains(had, address) {
			foreign = append(foreign, address)
		}
	}
	if len(foreign) == 0 || everywhere(ctx, e.authorizer, a) || a.GetNamespace() == "kube-system" &&
		a.GetUserInfo().GetName() == dnsPublisher {
		return nil
	}
	if !e.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	for _, address := range foreign {
		if why := e.refusal(a.GetNamespace(), address); why != "" {
			return admission.NewForbidden(a,
				fmt.Errorf("address %s: %s; endpoints written with the rights of one namespace may lead to its own pods and out of the "+
					"cluster (plugin %s)",
					address, why, EndpointAddressRestriction))
		}
	}
	return nil
}

// refusal says why an address is not the namespace's to lead to; "" when it is.
// An address of the pod CIDRs that no pod has is refused as well: the next
// pod to get it may be anybody's.
func (e *endpointRestriction) refusal(namespace, address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "" // a host name, or for validation to refuse
	}
	pods, err := e.pods.ByIndex(podIPIndex, ip.Unmap().String())
	if err != nil {
		return err.Error()
	}
	for _, object := range pods {
		if pod, ok := object.(*corev1.Pod); ok && pod.Namespace == namespace {
			return ""
		}
	}
	if len(pods) > 0 {
		return "it belongs to a pod of another namespace"
	}
	nodes, err := e.nodes.List(labels.Everything())
	if err != nil {
		return err.Error()
	}
	for _, node := range nodes {
		for _, cidr := range node.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(cidr); err == nil && p.Contains(ip.Unmap()) {
				return "it is in the pods' range of node " + node.Name + ", and no pod of namespace " + namespace + " has it"
			}
		}
		if slices.ContainsFunc(node.Status.Addresses, func(n corev1.NodeAddress) bool { return n.Address == address }) {
			return "it is the address of node " + node.Name
		}
	}
	return ""
}

func endpointAddresses(object runtime.Object) []string {
	var out []string
	switch o := object.(type) {
	case *corev1.Endpoints: //nolint:staticcheck // it is still served
		for i := range o.Subsets {
			for _, addresses := range [][]corev1.EndpointAddress{o.Subsets[i].Addresses,
				o.Subsets[i].NotReadyAddresses} { //nolint:staticcheck // see above
				for j := range addresses {
					out = append(out, addresses[j].IP)
				}
			}
		}
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			out = append(out, o.Endpoints[i].Addresses...)
		}
	}
	return out
}
