package admit

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestRulesBehindOthersSayWhatToDo asks the plugins that no request reaches on a
// test's server, as the chain has them.
func TestRulesBehindOthersSayWhatToDo(t *testing.T) {
	eve := &user.DefaultInfo{Name: "eve"}
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "x"),
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/one"}}
	for _, c := range []struct {
		rule    string
		factory admission.Factory
		request request
		names   []string
	}{
		{AlwaysPullImages, newAlwaysPullImages, request{resource: "pods", now: newPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		})}, []string{`pods "p"`, "spec.containers[0].imagePullPolicy", `must be "Always"`}},
		{ClusterTrustBundleAttest, newClusterTrustBundleAttest,
			request{resource: "clustertrustbundles.certificates.k8s.io", now: bundle, user: eve},
			[]string{`clustertrustbundles.certificates.k8s.io "x"`, "example.com/one", "spec.signerName"}},
		{PodCertificateSigning, newPodCertificateSigning, podCertificateStatus(eve),
			[]string{`podcertificaterequests.certificates.k8s.io "r"`, "example.com/one", "spec.signerName"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r := newRig(t, c.factory)
			var err error
			if v, ok := withRemedy(r.plugin, c.rule).(admission.ValidationInterface); ok {
				err = v.Validate(t.Context(), c.request.attributes(), nil)
			}
			if err == nil {
				t.Fatal("admitted")
			}
			t.Log(err)
			for _, want := range append(c.names, c.rule, remedies[c.rule]) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("does not say %q: %v", want, err)
				}
			}
		})
	}
}

func podCertificateStatus(by user.Info) request {
	old := &certificatesv1.PodCertificateRequest{ObjectMeta: named("ns", "r"),
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/one"}}
	now := old.DeepCopy()
	now.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: metav1.ConditionTrue}}
	return request{resource: "podcertificaterequests.certificates.k8s.io/status", now: runtime.Object(now), old: old, user: by}
}
