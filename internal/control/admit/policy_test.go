package admit_test

import (
	"strings"

	ar "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// testPolicy: a validating policy reads the object, its own variables and a
// parameter.
func testPolicy(h *hooks) {
	registration := h.api.AdmissionregistrationV1()
	_, err := h.api.CoreV1().ConfigMaps(h.ns).Create(h.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limit"},
		Data: map[string]string{"max": "4"}}, metav1.CreateOptions{})
	h.must(err)
	_, err = registration.ValidatingAdmissionPolicies().Create(h.Context(),
		&ar.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.ns}, Spec: ar.ValidatingAdmissionPolicySpec{
			ParamKind: &ar.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: &ar.MatchResources{ResourceRules: []ar.NamedRuleWithOperations{{RuleWithOperations: on("apps", "v1",
				"deployments", "CREATE", "UPDATE")}}},
			Variables: []ar.Variable{{Name: "replicas", Expression: "object.spec.replicas"},
				{Name: "odd", Expression: "variables.replicas % 2 == 1"}},
			Validations: []ar.Validation{
				{Expression: "variables.replicas > 1",
					MessageExpression: "'wants more than one replica, not ' + string(variables.replicas)"},
				{Expression: "variables.odd", Message: "wants an odd number"},
				{Expression: "variables.replicas <= int(params.data.max)", Message: "wants no more than the parameter"},
			},
		}}, metav1.CreateOptions{})
	h.must(err)
	_, err = registration.ValidatingAdmissionPolicyBindings().Create(h.Context(),
		&ar.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: h.ns}, Spec: ar.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: h.ns, ValidationActions: []ar.ValidationAction{ar.Deny},
			MatchResources: &ar.MatchResources{NamespaceSelector: h.here()},
			ParamRef:       &ar.ParamRef{Name: "limit", ParameterNotFoundAction: ptr.To(ar.DenyAction)},
		}}, metav1.CreateOptions{})
	h.must(err)
	make := func(n int32) error {
		labels := map[string]string{"a": "b"}
		_, err := h.api.AppsV1().Deployments(h.ns).Create(h.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"},
			Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}},
			metav1.CreateOptions{DryRun: []string{"All"}})
		return err
	}
	eventually(h.T, "one replica is refused", func() bool {
		err := make(1)
		return err != nil && strings.Contains(err.Error(), "wants more than one replica, not 1")
	})
	refused(h.T, make(2), "wants an odd number")
	refused(h.T, make(5), "wants no more than the parameter")
	h.must(make(3))
}
