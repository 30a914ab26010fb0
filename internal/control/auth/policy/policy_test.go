package policy

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/berth-dev/berth/internal/kube"
)

func mustDefault(t testing.TB) *Policy {
	t.Helper()
	p, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func role(p *Policy, name string) *rbacv1.ClusterRole {
	i := slices.IndexFunc(p.ClusterRoles, func(r *rbacv1.ClusterRole) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return p.ClusterRoles[i]
}

func TestDefaultsAreWellFormed(t *testing.T) {
	p := mustDefault(t)
	seen := map[string]bool{}
	for _, r := range p.ClusterRoles {
		if seen[r.Name] {
			t.Errorf("ClusterRole %q occurs twice", r.Name)
		}
		seen[r.Name] = true
		if len(r.Rules) == 0 {
			t.Errorf("ClusterRole %q has no rules", r.Name)
		}
		if r.Labels["kubernetes.io/bootstrapping"] != "rbac-defaults" ||
			r.Annotations["rbac.authorization.kubernetes.io/autoupdate"] != "true" {
			t.Errorf("ClusterRole %q lacks the marks of a default: %v %v", r.Name, r.Labels, r.Annotations)
		}
		for _, rule := range r.Rules {
			if len(rule.Verbs) == 0 || slices.Contains(rule.Verbs, "") || (len(rule.Resources) == 0) == (len(rule.NonResourceURLs) == 0) {
				t.Errorf("ClusterRole %q has malformed rule %+v", r.Name, rule)
			}
		}
	}
	for _, b := range p.ClusterRoleBindings {
		if !seen[b.RoleRef.Name] {
			t.Errorf("ClusterRoleBinding %q refers to missing %q", b.Name, b.RoleRef.Name)
		}
	}
	roles := map[string]bool{}
	for _, r := range p.Roles {
		roles[r.Namespace+"/"+r.Name] = true
	}
	for _, b := range p.RoleBindings {
		if !roles[b.Namespace+"/"+b.RoleRef.Name] || len(b.Subjects) == 0 {
			t.Errorf("RoleBinding %s/%s refers to a missing role or nobody", b.Namespace, b.Name)
		}
	}
}

func TestWhatClientsRelyOn(t *testing.T) {
	p := mustDefault(t)
	for _, c := range []struct{ role, rules string }{
		{"cluster-admin", "* *.*\n* /**"},
		{"view", "get,list,watch pods pods/log deployments.apps jobs.batch"},
		{"edit", "create,delete pods deployments.apps\nget secrets\nget pods/log\ncreate pods/eviction"},
		{"admin", "create rolebindings.rbac.authorization.k8s.io\ncreate pods\nget pods/log"},
		{"system:node-proxier", "list,watch services endpointslices.discovery.k8s.io\ncreate events.events.k8s.io\nget nodes"},
		{"system:node-bootstrapper", "create certificatesigningrequests.certificates.k8s.io"},
		{"system:kubelet-api-admin", "get,create nodes/proxy nodes/log nodes/metrics nodes/stats"},
		{"system:kube-scheduler", "create pods/binding\npatch pods/status"},
		{"system:controller:node-controller", "patch nodes/status\ndelete pods"},
		{"system:public-info-viewer", "get /healthz /version"},
	} {
		r := role(p, c.role)
		if r == nil {
			t.Errorf("ClusterRole %q is missing", c.role)
			continue
		}
		if covered, missing := validation.Covers(r.Rules, mustParse(c.rules)); !covered {
			t.Errorf("ClusterRole %q does not allow %v", c.role, missing)
		}
	}
	for _, c := range []struct{ role, rule string }{
		{"view", "get secrets"}, {"view", "create pods"}, {"edit", "create rolebindings.rbac.authorization.k8s.io"},
		{"admin", "update resourcequotas"}, {"system:node", "delete nodes"},
	} {
		if covered, _ := validation.Covers(role(p, c.role).Rules, mustParse(c.rule)); covered {
			t.Errorf("ClusterRole %q allows %q", c.role, c.rule)
		}
	}
}

func TestNobodyIsSystemNode(t *testing.T) {
	for _, b := range mustDefault(t).ClusterRoleBindings {
		if b.Name == "system:node" && len(b.Subjects) != 0 {
			t.Errorf("ClusterRoleBinding system:node has subjects %v; the Node authorizer decides for nodes", b.Subjects)
		}
	}
}

func TestParseRefusesMistakes(t *testing.T) {
	for _, text := range []string{"get", "get .apps", "get pods /healthz"} {
		if rules, err := kube.ParseRules(text); err == nil {
			t.Errorf("%q is accepted as %v", text, rules)
		}
	}
}

func TestEnsure(t *testing.T) {
	client := fake.NewClientset()
	ctx := t.Context()
	if err := Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	want := mustDefault(t)
	all := len(want.ClusterRoles) + len(want.ClusterRoleBindings) + len(want.Roles) + len(want.RoleBindings)
	if got := len(client.Actions()); got != all+4 {
		t.Errorf("first start took %d calls, want 4 lists and %d creates", got, all)
	}
	client.ClearActions()
	if err := Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	if got := len(client.Actions()); got != 4 {
		t.Errorf("second start took %d calls, want 4 lists", got)
	}

	roles, bindings := client.RbacV1().ClusterRoles(), client.RbacV1().ClusterRoleBindings()
	change := func(name string, f func(*rbacv1.ClusterRole)) {
		r, err := roles.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f(r)
		if _, err := roles.Update(ctx, r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"mine"}, Resources: []string{"things"}}
	change("system:kube-dns", func(r *rbacv1.ClusterRole) { r.Rules = []rbacv1.PolicyRule{extra}; r.Labels = nil })
	change("system:node-problem-detector",
		func(r *rbacv1.ClusterRole) { r.Rules = nil; r.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false" })
	change("view", func(r *rbacv1.ClusterRole) { r.Rules = nil })
	moved, err := bindings.Get(ctx, "system:discovery", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved.RoleRef.Name = "view"
	if _, err := bindings.Update(ctx, moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(ctx, "cluster-admin", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	if err := Ensure(ctx, client); err != nil {
		t.Fatal(err)
	}
	var did []string
	for _, a := range client.Actions() {
		if a.GetVerb() != "list" {
			did = append(did, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	slices.Sort(did)
	if got, want := strings.Join(did, ", "),
		"create clusterrolebindings, create clusterrolebindings, delete clusterrolebindings, patch clusterroles"; got != want {
		t.Errorf("repair did %s, want %s", got, want)
	}
	dns, err := roles.Get(ctx, "system:kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if covered, missing := validation.Covers(dns.Rules, append(role(want, "system:kube-dns").Rules, extra)); !covered ||
		dns.Labels[bootstrapLabel] == "" {
		t.Errorf("repaired role lacks %v or its label (%v)", missing, dns.Labels)
	}
}

func BenchmarkDefault(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustDefault(b)
	}
}
