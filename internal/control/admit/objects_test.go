package admit

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestDefaultClasses(t *testing.T) {
	at := func(name string, minute int, annotations ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(minute*60), 0)),
			Annotations: map[string]string{}}
		for _, a := range annotations {
			m.Annotations[a] = "true"
		}
		return m
	}
	const sc, ic = "storageclass.kubernetes.io/is-default-class", "ingressclass.kubernetes.io/is-default-class"
	r := newRig(t, newDefaultStorageClass,
		&storagev1.StorageClass{ObjectMeta: at("old", 1, sc)}, &storagev1.StorageClass{ObjectMeta: at("b", 2, sc)},
		&storagev1.StorageClass{ObjectMeta: at("a", 2, "storageclass.beta.kubernetes.io/is-default-class")},
		&storagev1.StorageClass{ObjectMeta: at("new", 3)})
	for _, c := range []struct {
		given *string
		want  string
	}{{nil, "a"}, {ptr.To(""), ""}, {ptr.To("x"), "x"}} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "c"),
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: c.given}}
		expect(t, r.do(request{resource: "persistentvolumeclaims", now: claim}), "")
		if got := ptr.Deref(claim.Spec.StorageClassName, "none"); got != c.want {
			t.Errorf("class %q, want %q", got, c.want)
		}
	}
	r = newRig(t, newDefaultIngressClass, &networkingv1.IngressClass{ObjectMeta: at("nginx", 1, ic)},
		&networkingv1.IngressClass{ObjectMeta: at("other", 2)})
	ingress := &networkingv1.Ingress{ObjectMeta: named("ns", "i")}
	expect(t, r.do(request{resource: "ingresses.networking.k8s.io", now: ingress}), "")
	old := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "i",
		Annotations: map[string]string{"kubernetes.io/ingress.class": "x"}}}
	expect(t, r.do(request{resource: "ingresses.networking.k8s.io", now: old}), "")
	if ptr.Deref(ingress.Spec.IngressClassName, "") != "nginx" || old.Spec.IngressClassName != nil {
		t.Errorf("classes %v and %v", ingress.Spec.IngressClassName, old.Spec.IngressClassName)
	}
}

func TestInUseAndResize(t *testing.T) {
	r := newRig(t, newStorageObjectInUseProtection)
	claim, volume := &corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "c")}, &corev1.PersistentVolume{ObjectMeta: named("", "v")}
	for range 2 {
		expect(t, r.do(request{resource: "persistentvolumeclaims", now: claim}), "")
		expect(t, r.do(request{resource: "persistentvolumes", now: volume}), "")
	}
	if len(claim.Finalizers) != 1 || claim.Finalizers[0] != "kubernetes.io/pvc-protection" || len(volume.Finalizers) != 1 ||
		volume.Finalizers[0] != "kubernetes.io/pv-protection" {
		t.Errorf("finalizers %v and %v", claim.Finalizers, volume.Finalizers)
	}
	r = newRig(t, newPersistentVolumeClaimResize, &storagev1.StorageClass{ObjectMeta: named("", "grows"),
		AllowVolumeExpansion: ptr.To(true)}, &storagev1.StorageClass{ObjectMeta: named("", "fixed")})
	sized := func(class, size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: named("ns", "c"), Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: quantities("storage", size)}}}
	}
	for _, c := range []struct {
		old, now *corev1.PersistentVolumeClaim
		want     string
	}{
		{sized("grows", "1Gi", "Bound"), sized("grows", "2Gi", "Bound"), ""},
		{sized("fixed", "1Gi", "Bound"), sized("fixed", "2Gi", "Bound"), "only dynamically provisioned pvc can be resized"},
		{sized("gone", "1Gi", "Bound"), sized("gone", "2Gi", "Bound"), "only dynamically provisioned pvc can be resized"},
		{sized("grows", "1Gi", "Pending"), sized("grows", "2Gi", "Pending"), "Only bound persistent volume claims can be expanded"},
		{sized("fixed", "2Gi", "Bound"), sized("fixed", "1Gi", "Bound"), ""},
	} {
		expect(t, r.do(request{resource: "persistentvolumeclaims", now: c.now, old: c.old}), c.want)
	}
}

func TestCertificates(t *testing.T) {
	ann, bob, eve := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "bob"}, &user.DefaultInfo{Name: "eve"}
	role := func(name, verb, signer string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: named("", name),
			Rules: []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"},
				ResourceNames: []string{signer}}}}
	}
	bind := func(role, who string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: named("", role), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: who}}}
	}
	csr := certificateRequest(t, "x", "example.com/one")
	signed := csr.DeepCopy()
	signed.Status.Certificate = []byte("cert")
	failed := csr.DeepCopy()
	failed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed}}
	const resource = "certificatesigningrequests.certificates.k8s.io"

	r := newRig(t, newCertificateApproval, role("one", "approve", "example.com/one"), bind("one", "ann"),
		role("domain", "approve", "example.com/*"), bind("domain", "bob"))
	expect(t, r.do(request{resource: resource + "/approval", now: csr, old: csr, user: ann}), "")
	expect(t, r.do(request{resource: resource + "/approval", now: csr, old: csr, user: bob}), "")
	expect(t, r.do(request{resource: resource + "/approval", now: csr, old: csr, user: eve}),
		`user not permitted to approve requests with signerName "example.com/one"`)
	expect(t, r.do(request{resource: resource + "/status", now: signed, old: csr, user: eve}), "")

	r = newRig(t, newCertificateSigning, role("one", "sign", "example.com/one"), bind("one", "ann"))
	expect(t, r.do(request{resource: resource + "/status", now: signed, old: csr, user: ann}), "")
	expect(t, r.do(request{resource: resource + "/status", now: csr, old: csr, user: eve}), "")
	expect(t, r.do(request{resource: resource + "/status", now: signed, old: csr, user: eve}),
		`user not permitted to sign requests with signerName "example.com/one"`)
	expect(t, r.do(request{resource: resource + "/status", now: failed, old: csr, user: eve}), "user not permitted to sign")

	const bundles = "clustertrustbundles.certificates.k8s.io"
	attested := &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "x"),
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/one"}}
	r = newRig(t, newClusterTrustBundleAttest, role("one", "attest", "example.com/one"), bind("one", "ann"))
	expect(t, r.do(request{resource: bundles, now: attested, user: ann}), "")
	expect(t, r.do(request{resource: bundles, now: attested, user: eve}), `user not permitted to attest for signerName "example.com/one"`)
	expect(t, r.do(request{resource: bundles, now: &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "x")}, user: eve}), "")

	r = newRig(t, newCertificateSubjectRestriction)
	const client = "kubernetes.io/kube-apiserver-client"
	expect(t, r.do(request{resource: resource, now: certificateRequest(t, "x", client, "devs")}), "")
	expect(t, r.do(request{resource: resource, now: certificateRequest(t, "x", client, "system:masters")}),
		"use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")
	expect(t, r.do(request{resource: resource, now: certificateRequest(t, "x", "kubernetes.io/legacy-unknown", "system:masters")}),
		"use of kubernetes.io/legacy-unknown signer with system:masters group is not allowed")
	expect(t, r.do(request{resource: resource, now: certificateRequest(t, "x", "example.com/one", "system:masters")}), "")
}

func TestEscalation(t *testing.T) {
	get := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}
	}
	rbacVerb := func(verb, resource, name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{resource},
			ResourceNames: []string{name}}
	}
	clusterRole := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: named("", name), Rules: rules}
	}
	binding := func(name, role string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: named("", name), RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io",
			Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}}
	}
	r := newRig(t, newRBACEscalation,
		clusterRole("held", get("pods"), rbacVerb("escalate", "clusterroles", "free"), rbacVerb("bind", "clusterroles", "secret-reader")),
		binding("held", "held"),
		clusterRole("pod-reader", get("pods")), clusterRole("secret-reader", get("secrets")), clusterRole("node-reader", get("nodes")),
		&rbacv1.Role{ObjectMeta: named("ns", "local"), Rules: []rbacv1.PolicyRule{get("secrets")}},
	)
	ann := &user.DefaultInfo{Name: "ann"}
	sum := clusterRole("sum")
	sum.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	more := clusterRole("r", get("secrets"))
	relabelled := more.DeepCopy()
	relabelled.Labels = map[string]string{"a": "b"}
	heldRelabelled := clusterRole("r", get("pods"))
	heldRelabelled.Labels = relabelled.Labels
	collected := more.DeepCopy()
	collected.Finalizers, collected.OwnerReferences = []string{"x/y"}, []metav1.OwnerReference{{Name: "o"}}
	collected.ResourceVersion, collected.Generation, collected.ManagedFields = "2", 2, []metav1.ManagedFieldsEntry{{Manager: "m"}}
	local := &rbacv1.Role{ObjectMeta: named("ns", "local"), Rules: []rbacv1.PolicyRule{get("secrets")}}
	localRelabelled := local.DeepCopy()
	localRelabelled.Labels = relabelled.Labels
	boundRelabelled := binding("b", "node-reader")
	boundRelabelled.Labels = relabelled.Labels
	roleBinding := func(kind, role string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: named("ns", "b"), RoleRef: rbacv1.RoleRef{Kind: kind, Name: role}}
	}
	const roles, bindings = "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io"
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"grant what one holds", request{resource: roles, now: clusterRole("new", get("pods"))}, ""},
		{"grant more", request{resource: roles, now: more},
			"user \"ann\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], " +
				"Resources:[\"secrets\"], Verbs:[\"get\"]}"},
		{"grow a role", request{resource: roles, now: more, old: clusterRole("r", get("pods"))}, "is attempting to grant"},
		{"relabel a role", request{resource: roles, now: relabelled, old: more}, "is attempting to grant"},
		{"relabel a role one holds", request{resource: roles, now: heldRelabelled, old: clusterRole("r", get("pods"))}, ""},
		{"write a role as it is", request{resource: roles, now: more, old: more}, ""},
		{"finalizers and owners", request{resource: roles, now: collected, old: more}, ""},
		{"drop the sum of a role", request{resource: roles, now: clusterRole("sum", get("pods")), old: sum}, "is attempting to grant"},
		{"relabel a local role", request{resource: "roles.rbac.authorization.k8s.io", now: localRelabelled, old: local},
			"is attempting to grant"},
		{"escalate", request{resource: roles, now: clusterRole("free", get("secrets"))}, ""},
		{"aggregate", request{resource: roles, now: sum}, "is attempting to grant"},
		{"master", request{resource: roles, now: more, user: &user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}}}, ""},
		{"bind what one holds", request{resource: bindings, now: binding("b", "pod-reader")}, ""},
		{"bind more", request{resource: bindings, now: binding("b", "node-reader")}, "is attempting to grant"},
		{"bind by right", request{resource: bindings, now: binding("b", "secret-reader")}, ""},
		{"bind nothing", request{resource: bindings, now: binding("b", "gone")}, `clusterroles.rbac.authorization.k8s.io "gone" not found`},
		{"write a binding as it is", request{resource: bindings, now: binding("b", "node-reader"), old: binding("b", "node-reader")}, ""},
		{"relabel a binding", request{resource: bindings, now: boundRelabelled, old: binding("b", "node-reader")},
			"is attempting to grant"},
		{"bind a local role", request{resource: "rolebindings.rbac.authorization.k8s.io", now: roleBinding("Role", "local")},
			"is attempting to grant"},
		{"bind a held role locally", request{resource: "rolebindings.rbac.authorization.k8s.io",
			now: roleBinding("ClusterRole", "pod-reader")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.user == nil {
				c.user = ann
			}
			expect(t, r.do(c.request), c.want)
		})
	}
}

// TestBindingReadsTheStore binds a role that has grown since the index last
// heard of it.
func TestBindingReadsTheStore(t *testing.T) {
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}
	}
	small := &rbacv1.ClusterRole{ObjectMeta: named("", "grows"), Rules: []rbacv1.PolicyRule{rule("pods")}}
	bind := &rbacv1.ClusterRoleBinding{ObjectMeta: named("", "b"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "grows"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}}
	r := newRig(t, newRBACEscalation, small, bind)
	ann := &user.DefaultInfo{Name: "ann"}
	const bindings = "clusterrolebindings.rbac.authorization.k8s.io"
	expect(t, r.do(request{resource: bindings, now: bind, user: ann}), "")
	large := small.DeepCopy()
	large.Rules = []rbacv1.PolicyRule{rule("secrets")}
	r.client.PrependReactor("get", "clusterroles", func(k8stesting.Action) (bool, runtime.Object, error) { return true, large, nil })
	expect(t, r.do(request{resource: bindings, now: bind, user: ann}), "is attempting to grant")
}
