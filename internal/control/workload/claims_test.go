package workload

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// devicesOn publishes n devices of a node, and a class for them.
func (c *cluster) devicesOn(node string, n int) {
	c.Helper()
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("d%d", i)})
	}
	_, err := c.client.ResourceV1().ResourceSlices().Create(c.ctx, s, metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.ResourceV1().DeviceClasses().Create(c.ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}},
		metav1.CreateOptions{})
	c.must(err)
}

func oneDevice() resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}}}}}
}

// claiming makes a pod with one resource claim: of a template, or by name.
func (c *cluster) claiming(ns, name, tmpl, claim string) {
	c.Helper()
	ref := v1.PodResourceClaim{Name: "gpu"}
	if tmpl != "" {
		ref.ResourceClaimTemplateName = &tmpl
	} else {
		ref.ResourceClaimName = &claim
	}
	spec := template("claiming").Spec
	spec.ResourceClaims = []v1.PodResourceClaim{ref}
	_, err := c.client.CoreV1().Pods(ns).Create(c.ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{})
	c.must(err)
}

func (c *cluster) running(ns, name string) {
	c.Helper()
	c.until("pod "+name+" runs", func() string {
		p, err := c.client.CoreV1().Pods(ns).Get(c.ctx, name, metav1.GetOptions{})
		c.must(err)
		if p.Status.Phase == v1.PodRunning {
			return ""
		}
		return fmt.Sprintf("%s %+v", p.Status.Phase, p.Status.Conditions)
	})
}

// TestClaimsFromRequestToRelease runs pods with a claim of a template and with
// a shared one against the real API server, scheduler and controllers: each
// gets a device of its own, the shared one is used by two, a pod too many
// waits, and gets its device when another pod is deleted. At the end nothing
// is left.
func TestClaimsFromRequestToRelease(t *testing.T) {
	c := newCluster(t, "n1", "n2")
	const ns = "gpus"
	c.namespace(ns)
	c.until("default service account", func() string {
		_, err := c.client.CoreV1().ServiceAccounts(ns).Get(c.ctx, "default", metav1.GetOptions{})
		return text(err)
	})
	c.devicesOn("n2", 2)
	claims := c.client.ResourceV1().ResourceClaims(ns)

	// The pod comes before its template: it waits, and is told.
	c.claiming(ns, "own", "tmpl", "")
	c.until("an event about the missing template", func() string {
		l, err := c.client.CoreV1().Events(ns).List(c.ctx, metav1.ListOptions{})
		c.must(err)
		for _, e := range l.Items {
			if e.Reason == "FailedResourceClaimCreation" && e.InvolvedObject.Name == "own" {
				return ""
			}
		}
		return fmt.Sprintf("%d other events", len(l.Items))
	})
	_, err := c.client.ResourceV1().ResourceClaimTemplates(ns).Create(c.ctx,
		&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "tmpl"},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: oneDevice()}}, metav1.CreateOptions{})
	c.must(err)
	c.running(ns, "own")
	_, err = claims.Create(c.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: oneDevice()},
		metav1.CreateOptions{})
	c.must(err)
	c.claiming(ns, "a", "", "shared")
	c.claiming(ns, "b", "", "shared")
	c.running(ns, "a")
	c.running(ns, "b")

	own, err := c.client.CoreV1().Pods(ns).Get(c.ctx, "own", metav1.GetOptions{})
	c.must(err)
	if len(own.Status.ResourceClaimStatuses) != 1 || own.Status.ResourceClaimStatuses[0].ResourceClaimName == nil {
		t.Fatalf("the pod's status names no claim: %+v", own.Status.ResourceClaimStatuses)
	}
	made, err := claims.Get(c.ctx, *own.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
	c.must(err)
	shared, err := claims.Get(c.ctx, "shared", metav1.GetOptions{})
	c.must(err)
	x, y := made.Status.Allocation.Devices.Results[0], shared.Status.Allocation.Devices.Results[0]
	if x.Device == y.Device || x.Pool != "n2" || own.Spec.NodeName != "n2" || len(shared.Status.ReservedFor) != 2 ||
		len(made.Status.ReservedFor) != 1 {
		t.Errorf("own claim %+v, shared claim %+v", made.Status, shared.Status)
	}

	c.claiming(ns, "late", "tmpl", "")
	c.until("the pod too many is refused", func() string {
		p, err := c.client.CoreV1().Pods(ns).Get(c.ctx, "late", metav1.GetOptions{})
		c.must(err)
		for _, x := range p.Status.Conditions {
			if x.Type == v1.PodScheduled && x.Reason == v1.PodReasonUnschedulable {
				return ""
			}
		}
		return fmt.Sprintf("%+v", p.Status)
	})
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, "own", metav1.DeleteOptions{}))
	c.running(ns, "late")
	if _, err := claims.Get(c.ctx, made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted pod's claim: %v", err)
	}

	// A shared claim outlives its users, without a device; a deleted one goes
	// with the last of them.
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, "a", metav1.DeleteOptions{}))
	c.until("one user left", func() string {
		s, err := claims.Get(c.ctx, "shared", metav1.GetOptions{})
		c.must(err)
		if len(s.Status.ReservedFor) == 1 && s.Status.ReservedFor[0].Name == "b" && s.Status.Allocation != nil {
			return ""
		}
		return fmt.Sprintf("%+v", s.Status)
	})
	c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, "b", metav1.DeleteOptions{}))
	c.until("the shared claim is free", func() string {
		s, err := claims.Get(c.ctx, "shared", metav1.GetOptions{})
		c.must(err)
		if len(s.Status.ReservedFor) == 0 && s.Status.Allocation == nil {
			return ""
		}
		return fmt.Sprintf("%+v", s.Status)
	})
	c.claiming(ns, "again", "", "shared")
	c.running(ns, "again")
	c.must(claims.Delete(c.ctx, "shared", metav1.DeleteOptions{}))
	if s, err := claims.Get(c.ctx, "shared", metav1.GetOptions{}); err != nil || s.DeletionTimestamp == nil {
		t.Errorf("a claim in use was deleted at once: %v", err)
	}
	for _, name := range []string{"again", "late"} {
		c.must(c.client.CoreV1().Pods(ns).Delete(c.ctx, name, metav1.DeleteOptions{}))
	}
	c.until("all claims go", func() string {
		l, err := claims.List(c.ctx, metav1.ListOptions{})
		c.must(err)
		if len(l.Items) == 0 {
			return ""
		}
		return fmt.Sprintf("%d left, first %+v", len(l.Items), l.Items[0])
	})
}
