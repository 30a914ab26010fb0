package aggregate

import (
	"log/slog"
	"testing"
	"time"

	"context"
	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/controller"
)

func part(name, label, resource string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}},
	}
}

func sum(name, label string, selects ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}},
		AggregationRule: &rbacv1.AggregationRule{}}
	for _, s := range selects {
		r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{s: "true"}})
	}
	return r
}

func resources(r *rbacv1.ClusterRole) string {
	var out string
	for _, rule := range r.Rules {
		out += rule.Resources[0] + " "
	}
	return out
}

func TestSettle(t *testing.T) {
	top, middle := sum("top", "x", "b", "a"), sum("middle", "a", "c", "a")
	roles := []*rbacv1.ClusterRole{top, middle, part("z", "c", "pods"), part("y", "c", "nodes"), part("x", "b", "pods"),
		part("w", "none", "secrets")}
	if err := AggregateAll(roles); err != nil {
		t.Fatal(err)
	}
	if got := resources(middle); got != "nodes pods " {
		t.Errorf("middle has %s, want its parts by name and not itself", got)
	}
	if got := resources(top); got != "pods nodes " {
		t.Errorf("top has %s, want selector order and no rule twice", got)
	}
	bad := sum("bad", "x")
	bad.AggregationRule.ClusterRoleSelectors = []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k",
		Operator: "Sometimes"}}}}
	if _, err := rules(bad, roles); err == nil {
		t.Error("an unreadable selector gives no error")
	}
}

func TestControllerFollowsChanges(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(sum("top", "x", "a"), part("p", "a", "pods"))
	factory := informers.NewSharedInformerFactory(client, 0)
	seen, err := client.RbacV1().ClusterRoles().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	factory.Rbac().V1().ClusterRoles().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go func() {
		done <- run(ctx, controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler)})
	}()
	await(t, seen, "pods ")
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, part("q", "a", "nodes"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, seen, "pods nodes ")
	if err := client.RbacV1().ClusterRoles().Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, seen, "nodes ")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	seen.Stop()
	factory.Shutdown()
}

// await waits for the event in which "top" has exactly these resources.
func await(t *testing.T, events watch.Interface, want string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for last := "nothing"; ; {
		select {
		case e := <-events.ResultChan():
			if r := e.Object.(*rbacv1.ClusterRole); r.Name == "top" {
				if last = resources(r); last == want {
					return
				}
			}
		case <-deadline:
			t.Fatalf("top has %s, want %s", last, want)
		}
	}
}
