package admit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestAdminAccessNeedsALabel(t *testing.T) {
	labelled := func(name, value string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{"resource.kubernetes.io/admin-access": value}}}
	}
	r := newRig(t, newDeviceAdminAccess, labelled("trusted", "true"), labelled("wrong", "yes"),
		&corev1.Namespace{ObjectMeta: named("", "plain")})
	spec := func(admin *bool) resourcev1.ResourceClaimSpec {
		return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "any", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "x"}}},
			{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{AdminAccess: admin}}}}}
	}
	claim := func(ns string, admin *bool) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{ObjectMeta: named(ns, "c"), Spec: spec(admin)}
	}
	template := func(ns string, admin *bool) *resourcev1.ResourceClaimTemplate {
		return &resourcev1.ResourceClaimTemplate{ObjectMeta: named(ns, "t"), Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec(admin)}}
	}
	given := func(ns string) *resourcev1.ResourceClaim {
		c := claim(ns, nil)
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{}, {AdminAccess: ptr.To(true)}}}}
		return c
	}
	const refused = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label"
	const claims, templates = "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io"
	for _, ns := range []string{"plain", "wrong"} {
		expect(t, r.do(request{resource: claims, now: claim(ns, nil)}), "")
		expect(t, r.do(request{resource: claims, now: claim(ns, ptr.To(false))}), "")
		expect(t, r.do(request{resource: claims, now: claim(ns, ptr.To(true))}),
			"spec.devices.requests[1].exactly.adminAccess: Forbidden: "+refused)
		expect(t, r.do(request{resource: templates, now: template(ns, ptr.To(true))}),
			"spec.spec.devices.requests[1].exactly.adminAccess: Forbidden: "+refused)
		expect(t, r.do(request{resource: claims + "/status", old: claim(ns, nil), now: given(ns)}),
			"status.allocation.devices.results[1].adminAccess: Forbidden: "+refused)
		// One from when the label was there still loses its finalizer.
		expect(t, r.do(request{resource: claims, old: claim(ns, ptr.To(true)), now: claim(ns, ptr.To(true))}), "")
	}
	expect(t, r.do(request{resource: claims, now: claim("trusted", ptr.To(true))}), "")
	expect(t, r.do(request{resource: templates, now: template("trusted", ptr.To(true))}), "")
	expect(t, r.do(request{resource: claims + "/status", old: claim("trusted", nil), now: given("trusted")}), "")
	expect(t, r.do(request{resource: claims, now: claim("missing", ptr.To(true))}), "missing")
}
