package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"

	podnetwork "github.com/berth-dev/berth/internal/network"
)

// Where a joining node reads what it must know of its cluster.
const (
	factsNamespace = metav1.NamespacePublic
	factsName      = "berth-cluster"
	factsKey       = "cluster.json"
	// nodeRole is the cluster role of the parts beside the agent: the proxy,
	// the network and DNS of a node read these.
	nodeRole = "berth:node"
)

// shared is what every host of a cluster must know alike.
type shared struct {
	ClusterCIDR   string `json:"clusterCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterDomain string `json:"clusterDomain"`
	// Network is how packets of pods reach other nodes.
	Network podnetwork.Mode `json:"network,omitempty"`
}

// publishClusterInfo lets other hosts join: it grants what a bootstrap token and a node
// need, and publishes what they must know. It is idempotent.
func publishClusterInfo(ctx context.Context, client kubernetes.Interface, shared shared) error {
	facts, err := json.Marshal(shared)
	if err != nil {
		return fmt.Errorf("encoding the cluster's facts: %w", err)
	}
	opts := metav1.ApplyOptions{FieldManager: "berth", Force: true}
	cm := corev1ac.ConfigMap(factsName, factsNamespace).WithData(map[string]string{factsKey: string(facts)})
	if _, err := client.CoreV1().ConfigMaps(factsNamespace).Apply(ctx, cm, opts); err != nil {
		return fmt.Errorf("publishing the cluster's facts: %w", err)
	}
	group := func(name string) *rbacv1ac.SubjectApplyConfiguration {
		return rbacv1ac.Subject().WithKind(rbacv1.GroupKind).WithAPIGroup(rbacv1.GroupName).WithName(name)
	}
	bootstrappers, nodes := group(api.BootstrapDefaultGroup), group("system:nodes")
	role := rbacv1ac.Role(factsName, factsNamespace).WithRules(
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("configmaps").WithResourceNames(factsName).WithVerbs("get"))
	if _, err := client.RbacV1().Roles(factsNamespace).Apply(ctx, role, opts); err != nil {
		return fmt.Errorf("granting the cluster's facts: %w", err)
	}
	binding := rbacv1ac.RoleBinding(factsName, factsNamespace).WithSubjects(bootstrappers, nodes).
		WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(factsName))
	if _, err := client.RbacV1().RoleBindings(factsNamespace).Apply(ctx, binding, opts); err != nil {
		return fmt.Errorf("granting the cluster's facts: %w", err)
	}
	read := func(group string, resources ...string) *rbacv1ac.PolicyRuleApplyConfiguration {
		return rbacv1ac.PolicyRule().WithAPIGroups(group).WithResources(resources...).WithVerbs("get", "list", "watch")
	}
	reader := rbacv1ac.ClusterRole(nodeRole).WithRules(
		read("", "nodes", "services", "namespaces"),
		// For network policies. A node sees other nodes' pods reduced to names,
		// labels, addresses and ports (see internal/control/api/pods/peers.go);
		// get stays with the Node authorizer: its own pods alone.
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("pods").WithVerbs("list", "watch"),
		read("discovery.k8s.io", "endpointslices"),
		read("networking.k8s.io", "networkpolicies", "servicecidrs"))
	if _, err := client.RbacV1().ClusterRoles().Apply(ctx, reader, opts); err != nil {
		return fmt.Errorf("granting nodes what their proxies read: %w", err)
	}
	for name, b := range map[string]struct {
		role string
		to   *rbacv1ac.SubjectApplyConfiguration
	}{
		nodeRole:                 {nodeRole, nodes},
		"berth:node-bootstrap":   {"system:node-bootstrapper", bootstrappers},
		"berth:approve-node":     {"system:certificates.k8s.io:certificatesigningrequests:nodeclient", bootstrappers},
		"berth:approve-rotation": {"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodes},
	} {
		crb := rbacv1ac.ClusterRoleBinding(name).WithSubjects(b.to).
			WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("ClusterRole").WithName(b.role))
		if _, err := client.RbacV1().ClusterRoleBindings().Apply(ctx, crb, opts); err != nil {
			return fmt.Errorf("granting %s: %w", name, err)
		}
	}
	return nil
}

// startClusterInfo publishes it as a part of its own, which tries again until
// the API takes it.
func (u *up) startClusterInfo(context.Context) error {
	shared := shared{ClusterCIDR: u.ClusterCIDR, ServiceCIDR: u.ServiceCIDR, ClusterDomain: u.ClusterDomain, Network: u.Network}
	u.keep("cluster info", func(ctx context.Context) error {
		if err := publishClusterInfo(ctx, u.client, shared); err != nil {
			return err
		}
		if pools, err := u.pools(); err != nil || len(pools) > 0 {
			if err := errors.Join(err, allowAnnouncing(ctx, u.client)); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
	return nil
}
