package api_test

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	dra "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestClaimStatusRights: the right to resourceclaims/status alone neither binds
// a claim nor tells of its devices; the scheduler's role binds.
func TestClaimStatusRights(t *testing.T) {
	env := apitest.StartEnv(t)
	f := newFixture(t, env)
	claims := f.ResourceV1().ResourceClaims(f.ns)
	if _, err := claims.Create(t.Context(), &dra.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: dra.ResourceClaimSpec{Devices: dra.DeviceClaim{Requests: []dra.DeviceRequest{{Name: "r",
			Exactly: &dra.ExactDeviceRequest{DeviceClassName: "gpu"}}}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "status"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{dra.GroupName},
			Resources: []string{"resourceclaims/status"}, Verbs: []string{"patch"}}}}
	if _, err := f.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "meddler"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "meddler",
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "patch", Group: dra.GroupName,
			Resource:    "resourceclaims",
			Subresource: "status", Name: "c"}}}
	for allowed := false; !allowed; { // until the authorizer has seen the binding; the test's deadline bounds it
		r, err := f.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review.DeepCopy(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		allowed = r.Status.Allowed
	}
	patch := func(user, status string) error {
		_, err := clients(t, env.As(t, user)).ResourceV1().ResourceClaims(f.ns).Patch(t.Context(), "c", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{}},"status":`+status+`}`), metav1.PatchOptions{}, "status")
		return err
	}
	const allocation = `{"allocation":{"devices":{"results":[{"request":"r","driver":"d.example.com","pool":"p","device":"d"}]}}}`
	if err := patch("meddler", allocation); !apierrors.IsInvalid(err) {
		t.Errorf("allocating with the right to the status alone: %v", err)
	}
	if err := patch("system:kube-scheduler", allocation); err != nil {
		t.Errorf("the scheduler allocates: %v", err)
	}
	const devices = `{"devices":[{"driver":"d.example.com","pool":"p","device":"d"}]}`
	if err := patch("meddler", devices); !apierrors.IsInvalid(err) {
		t.Errorf("telling of devices with the right to the status alone: %v", err)
	}
	if err := patch("meddler", `{}`); err != nil {
		t.Errorf("a write that changes no guarded part: %v", err)
	}
}
