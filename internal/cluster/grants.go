package cluster

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/ui"
)

const (
	// kubeletClientUser is who the API server is to agents. It is a user like
	// any other, with the rights of kubeletAPIRole: a server that could be made
	// to send a request of its own to itself must gain nothing by it
	// (CVE-2022-3294).
	kubeletClientUser = "kube-apiserver-kubelet-client"
	// kubeletAPIAdmin is upstream's role for agents' APIs; kubeletAPIRole adds
	// what agents serve beyond it.
	kubeletAPIAdmin = "system:kubelet-api-admin"
	kubeletAPIRole  = "berth:kubelet-api"
)

// grantIdentities is grant as a step of the start.
func (u *up) grantIdentities(ctx context.Context) error { return grant(ctx, u.client) }

// grant gives the identities that this process made certificates for the rights
// they need. It runs before anything uses them, at every start, and is
// idempotent.
func grant(ctx context.Context, client kubernetes.Interface) error {
	opts := metav1.ApplyOptions{FieldManager: "berth", Force: true}
	role := rbacv1ac.ClusterRole(kubeletAPIRole).WithRules(
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("nodes/checkpoint", "nodes/statusz").WithVerbs("*"))
	if _, err := client.RbacV1().ClusterRoles().Apply(ctx, role, opts); err != nil {
		return fmt.Errorf("granting the API server access to agents: %w", err)
	}
	for name, role := range map[string]string{"berth:kubelet-api-admin": kubeletAPIAdmin, kubeletAPIRole: kubeletAPIRole} {
		if err := bindUser(ctx, client, name, role, kubeletClientUser); err != nil {
			return fmt.Errorf("granting the API server access to agents: %w", err)
		}
	}
	if err := grantStatusPage(ctx, client); err != nil {
		return fmt.Errorf("granting users the status page: %w", err)
	}
	return grantAdmins(ctx, client)
}

// statusPageRole lets a user get the status page, which shows what else the
// user may list.
const statusPageRole = "berth:status-page"

// grantStatusPage binds the role to every user who is authenticated, as
// discovery is. Anyone who takes all subjects off the binding closes the page:
// a binding that exists is left as it is.
func grantStatusPage(ctx context.Context, client kubernetes.Interface) error {
	role := rbacv1ac.ClusterRole(statusPageRole).WithRules(
		rbacv1ac.PolicyRule().WithNonResourceURLs(strings.TrimSuffix(ui.Prefix, "/"), ui.Prefix+"*").WithVerbs("get"))
	if _, err := client.RbacV1().ClusterRoles().Apply(ctx, role, metav1.ApplyOptions{FieldManager: "berth", Force: true}); err != nil {
		return err
	}
	return bind(ctx, client, statusPageRole, statusPageRole,
		rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.AllAuthenticated})
}

// grantAdmins binds the administrators' group to cluster-admin, once in a
// cluster's life: anyone who deletes the binding revokes every admin.kubeconfig
// there is, and the next start must not bring it back.
func grantAdmins(ctx context.Context, client kubernetes.Interface) error {
	marks := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := marks.Get(ctx, adminsMark, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return wrapGrant(err)
	}
	group := rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: adminGroup}
	if err := bind(ctx, client, adminGroup, "cluster-admin", group); err != nil {
		return wrapGrant(err)
	}
	_, err = marks.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: adminsMark}, Data: map[string]string{
		"binding": adminGroup, "note": "ClusterRoleBinding " + adminGroup + " was made once; delete it to revoke admin.kubeconfig. " +
			"super-admin.kubeconfig in the data directory goes on working.",
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return wrapGrant(err)
}

func wrapGrant(err error) error {
	if err != nil {
		return fmt.Errorf("granting administrators their role: %w", err)
	}
	return nil
}

// adminsMark is the ConfigMap that remembers that the administrators' binding was made.
const adminsMark = "berth-cluster-admins"

// bindUser binds a user to a cluster role.
func bindUser(ctx context.Context, client kubernetes.Interface, name, role, user string) error {
	return bind(ctx, client, name, role, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user})
}

// bind binds a subject to a cluster role. Only a missing binding is written:
// most starts find it there.
func bind(ctx context.Context, client kubernetes.Interface, name, role string, to rbacv1.Subject) error {
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{to},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// localAgent is the agent of this process, which the API server may reach on loopback.
func (u *up) localAgent() nodelink.LocalAgent {
	if !u.Role.node() {
		return nodelink.LocalAgent{}
	}
	return nodelink.LocalAgent{Node: u.NodeName, Port: u.Ports.Agent}
}
