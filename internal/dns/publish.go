package dns

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Namespace and ServiceName are where cluster DNS is found; tools look for it
// there.
const (
	Namespace   = "kube-system"
	ServiceName = "kube-dns"
	// manager owns the fields that Publish writes.
	manager = "berth-dns"
)

// Publish makes, or mends, the Service kube-system/kube-dns with address
// clusterIP and the EndpointSlice that sends its traffic to nodeIP:port. It
// may be called any number of times. The Service's address cannot change: if
// there is one with another address, that is an error.
func Publish(ctx context.Context, client kubernetes.Interface, clusterIP, nodeIP net.IP, port int) error {
	if clusterIP == nil || nodeIP == nil {
		return fmt.Errorf("publishing cluster DNS: an address is missing (service %v, node %v)", clusterIP, nodeIP)
	}
	if (clusterIP.To4() == nil) != (nodeIP.To4() == nil) {
		return fmt.Errorf("publishing cluster DNS: service address %s and node address %s are of different families", clusterIP, nodeIP)
	}
	if port < 1 || port > 65535 {
		return fmt.Errorf("publishing cluster DNS: port %d: not between 1 and 65535", port)
	}
	if err := ensureService(ctx, client, wantedService(clusterIP)); err != nil {
		return fmt.Errorf("publishing service %s/%s: %w", Namespace, ServiceName, err)
	}
	if err := ensureSlice(ctx, client, wantedSlice(nodeIP, port)); err != nil {
		return fmt.Errorf("publishing the endpoints of service %s/%s: %w", Namespace, ServiceName, err)
	}
	return nil
}

func labels() map[string]string {
	return map[string]string{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
}

func wantedService(clusterIP net.IP) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ServiceName, Labels: labels()},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: clusterIP.String(), ClusterIPs: []string{clusterIP.String()},
			// No selector: the endpoint is this process, not a pod.
			Ports: []v1.ServicePort{{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Protocol: v1.ProtocolTCP, Port: 53}},
		},
	}
}

func wantedSlice(nodeIP net.IP, port int) *discovery.EndpointSlice {
	family := discovery.AddressTypeIPv4
	if nodeIP.To4() == nil {
		family = discovery.AddressTypeIPv6
	}
	l := labels()
	l[discovery.LabelServiceName] = ServiceName
	// Another manager's name keeps the endpoint slice controllers away.
	l[discovery.LabelManagedBy] = manager
	p := ptr.To(int32(port))
	return &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: Namespace, Name: ServiceName, Labels: l},
		AddressType: family,
		Endpoints:   []discovery.Endpoint{{Addresses: []string{nodeIP.String()}, Conditions: discovery.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}}},
		Ports: []discovery.EndpointPort{
			{Name: ptr.To("dns"), Protocol: ptr.To(v1.ProtocolUDP), Port: p},
			{Name: ptr.To("dns-tcp"), Protocol: ptr.To(v1.ProtocolTCP), Port: p},
		},
	}
}

func ensureService(ctx context.Context, client kubernetes.Interface, want *v1.Service) error {
	api := client.CoreV1().Services(Namespace)
	_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: manager})
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsInvalid(err) {
		return err
	}
	// An address that is taken is refused as invalid, by this Service's own
	// earlier self too.
	have, getErr := api.Get(ctx, want.Name, metav1.GetOptions{})
	if getErr != nil {
		return fmt.Errorf("%w (and reading it: %w)", err, getErr)
	}
	if have.Spec.ClusterIP != want.Spec.ClusterIP {
		return fmt.Errorf("it has address %s and must have %s, which pods are told: delete it and it is made again", have.Spec.ClusterIP, want.Spec.ClusterIP)
	}
	// selector: null takes a foreign selector away, which would give the
	// Service other endpoints.
	patch := map[string]any{
		"metadata": map[string]any{"labels": want.Labels},
		"spec":     map[string]any{"selector": nil, "ports": want.Spec.Ports},
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	_, err = api.Patch(ctx, want.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager})
	return err
}

func ensureSlice(ctx context.Context, client kubernetes.Interface, want *discovery.EndpointSlice) error {
	api := client.DiscoveryV1().EndpointSlices(Namespace)
	_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: manager})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have.AddressType != want.AddressType {
		// The family of a slice cannot change.
		if err := api.Delete(ctx, want.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		_, err = api.Create(ctx, want, metav1.CreateOptions{FieldManager: manager})
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels}, "endpoints": want.Endpoints, "ports": want.Ports})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	_, err = api.Patch(ctx, want.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager})
	return err
}
