package admit

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
)

// podWithCertificate is a pod of node n1 whose volume asks one signer.
func podWithCertificate(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := newPod(withVolume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/one"}}}}}))
	pod.Name, pod.UID, pod.Spec.NodeName, pod.Spec.ServiceAccountName = "mine", "m", "n1", "sa"
	for _, f := range change {
		f(pod)
	}
	return pod
}

func TestRestrictionOfPodCertificates(t *testing.T) {
	r := newRig(t, newNodeRestriction, bareNode(), podWithCertificate(),
		podWithCertificate(func(p *corev1.Pod) { p.Name, p.UID, p.Spec.NodeName = "theirs", "t", "n2" }),
		podWithCertificate(func(p *corev1.Pod) {
			p.Name, p.UID = "mirror", "mi"
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "h"}
		}),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "s"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "o"}},
		&rbacv1.ClusterRole{ObjectMeta: named("", "sign"),
			Rules: []rbacv1.PolicyRule{{Verbs: []string{podSignerVerb}, APIGroups: []string{"certificates.k8s.io"},
				Resources: []string{"example.com:granted"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named("", "sign"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "sign"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "system:node:n1"}}},
	)
	asked := func(change func(*certificatesv1.PodCertificateRequestSpec)) *certificatesv1.PodCertificateRequest {
		p := &certificatesv1.PodCertificateRequest{ObjectMeta: named("ns", "r"), Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/one", PodName: "mine", PodUID: "m", ServiceAccountName: "sa", ServiceAccountUID: "s", NodeName: "n1",
			NodeUID: "u1"}}
		if change != nil {
			change(&p.Spec)
		}
		return p
	}
	type spec = certificatesv1.PodCertificateRequestSpec
	const resource = "podcertificaterequests.certificates.k8s.io"
	for _, c := range []struct {
		name string
		request
		want string
	}{
		{"own pod", request{now: asked(nil)}, ""},
		{"another node", request{now: asked(func(s *spec) { s.NodeName = "n2" })},
			`PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1"`},
		{"another incarnation of the node", request{now: asked(func(s *spec) { s.NodeUID = "u0" })},
			`names node UID "u0", inconsistent with the running node ("u1")`},
		{"no such pod", request{now: asked(func(s *spec) { s.PodName = "none" })},
			`while retrieving pod "ns/none" named in the PodCertificateRequest`},
		{"another incarnation of the pod", request{now: asked(func(s *spec) { s.PodUID = "old" })},
			`contains pod UID ("old") which differs from running pod "m"`},
		{"a pod elsewhere", request{now: asked(func(s *spec) { s.PodName, s.PodUID = "theirs", "t" })},
			`pod "ns/theirs" is not running on node "n1"`},
		{"a mirror pod", request{now: asked(func(s *spec) { s.PodName, s.PodUID = "mirror", "mi" })}, `pod "ns/mirror" is a mirror pod`},
		{"another account", request{now: asked(func(s *spec) { s.ServiceAccountName, s.ServiceAccountUID = "other", "o" })},
			`contains serviceAccountName ("other") that differs from running pod ("sa")`},
		{"another incarnation of the account", request{now: asked(func(s *spec) { s.ServiceAccountUID = "old" })},
			`names service account UID "old", which differs from the running service account ("s")`},
		{"another signer", request{now: asked(func(s *spec) { s.SignerName = "example.com/two" })},
			`signer "example.com/two" not found in pod spec volume`},
		{"a granted signer", request{now: asked(func(s *spec) { s.SignerName = "example.com/granted" })}, ""},
		{"a change", request{now: asked(nil), old: asked(nil)}, "unexpected operation UPDATE"},
		{"an answer", request{resource: resource + "/status", now: asked(nil), old: asked(nil)}, "unexpected operation UPDATE"},
		{"a deletion", request{old: asked(nil)}, "unexpected operation DELETE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.resource == "" {
				c.resource = resource
			}
			c.user = node1
			expect(t, r.do(c.request), c.want)
		})
	}
	// A pod that the cache still knows by its predecessor is looked up again.
	fresh := podWithCertificate(func(p *corev1.Pod) { p.UID = "m2" })
	r.plugin.(*restriction).client = newRig(t, newNodeRestriction, runtime.Object(fresh)).client
	expect(t, r.do(request{resource: resource, now: asked(func(s *spec) { s.PodUID = "m2" }), user: node1}), "")
}

func TestPodCertificateSigning(t *testing.T) {
	ann, eve := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "eve"}
	r := newRig(t, newPodCertificateSigning,
		&rbacv1.ClusterRole{ObjectMeta: named("", "one"),
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"sign"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"},
				ResourceNames: []string{"example.com/*"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named("", "one"), RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "one"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann"}}})
	asked := &certificatesv1.PodCertificateRequest{ObjectMeta: named("ns", "r"),
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/one"}}
	denied := asked.DeepCopy()
	denied.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: metav1.ConditionTrue}}
	const resource = "podcertificaterequests.certificates.k8s.io"
	expect(t, r.do(request{resource: resource + "/status", now: denied, old: asked, user: ann}), "")
	expect(t, r.do(request{resource: resource + "/status", now: denied, old: asked, user: eve}),
		`User "eve" is not permitted to "sign" for signer "example.com/one"`)
	expect(t, r.do(request{resource: resource + "/status", now: asked, old: asked, user: eve}), "")
	expect(t, r.do(request{resource: resource, now: asked, old: asked, user: eve}), "")
}
