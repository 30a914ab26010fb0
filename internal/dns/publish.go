package dns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Namespace and ServiceName are where cluster DNS is found; tools look for it
// there.
const (
	Namespace   = "kube-system"
	ServiceName = "kube-dns"
	// manager owns the fields that Publish writes.
	manager = "berth-dns"
)

// publish makes, or repairs, the Service kube-system/kube-dns with address
// clusterIP. It may be called any number of times. The Service's address
// cannot change: if there is one with another address, that is an error.
func publish(ctx context.Context, client kubernetes.Interface, clusterIP net.IP) error {
	if clusterIP == nil {
		return errors.New("publishing cluster DNS: the service's address is missing")
	}
	if err := ensureService(ctx, client, wantedService(clusterIP)); err != nil {
		return fmt.Errorf("publishing service %s/%s: %w", Namespace, ServiceName, err)
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
			// No selector: the endpoints are parts of nodes, not pods.
			Ports: []v1.ServicePort{{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53}, {Name: "dns-tcp", Protocol: v1.ProtocolTCP,
				Port: 53}},
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
		return fmt.Errorf("it has address %s and must have %s, which pods are told: delete it and it is made again", have.Spec.ClusterIP,
			want.Spec.ClusterIP)
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
