package rbac

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAStartRefusesNobody: a request that comes before the roles are read waits
// for them.
func TestAStartRefusesNobody(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: "all"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}}},
	), 0)
	a, err := New(factory)
	if err != nil {
		t.Fatal(err)
	}
	request := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Resource: "pods", ResourceRequest: true}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if d, _, _ := a.Authorize(gone, request); d != authorizer.DecisionNoOpinion {
		t.Errorf("a request that is gone: %v", d)
	}
	answer := make(chan authorizer.Decision)
	go func() {
		d, _, _ := a.Authorize(t.Context(), request)
		answer <- d
	}()
	life, end := context.WithCancel(t.Context())
	defer func() { end(); factory.Shutdown() }()
	factory.Start(life.Done())
	if d := <-answer; d != authorizer.DecisionAllow {
		t.Errorf("a request at the start: %v", d)
	}
}
