package scale_test

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applyv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func TestScale(t *testing.T) {
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	deployments := client.AppsV1().Deployments("default")
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "example.test/c:1"}}},
	}
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := deployments.GetScale(ctx, "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Replicas != 1 || s.Status.Selector != "app=a" || s.Name != "d" || s.UID == "" {
		t.Errorf("scale is %+v", s)
	}
	stale := s.DeepCopy()
	s.Spec.Replicas = 3
	if s, err = deployments.UpdateScale(ctx, "d", s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	d, err := deployments.Get(ctx, "d", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 3 || d.Generation != 2 || s.ResourceVersion != d.ResourceVersion {
		t.Errorf("deployment has %d replicas, generation %d, %v", *d.Spec.Replicas, d.Generation, err)
	}
	if _, err := deployments.UpdateScale(ctx, "d", stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a stale scale gave %v, want Conflict", err)
	}
	s.Spec.Replicas = -1
	if _, err := deployments.UpdateScale(ctx, "d", s, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("negative replicas gave %v, want Invalid", err)
	}
	if _, err := deployments.UpdateScale(ctx, "absent", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "absent"}},
		metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("scaling nothing gave %v, want NotFound", err)
	}
	if _, err := deployments.Patch(ctx, "d", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{},
		"scale"); err != nil {
		t.Errorf("patching the scale: %v", err)
	}
	apply := applyv1.Scale().WithName("d").WithNamespace("default").WithSpec(applyv1.ScaleSpec().WithReplicas(5))
	if _, err := deployments.ApplyScale(ctx, "d", apply, metav1.ApplyOptions{FieldManager: "hpa", Force: true}); err != nil {
		t.Fatal(err)
	}
	if d, err = deployments.Get(ctx, "d", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 5 {
		t.Fatalf("deployment is %+v, %v", d, err)
	}
	owned := false
	for _, m := range d.ManagedFields {
		owned = owned || m.Manager == "hpa" && m.APIVersion == "apps/v1" && strings.Contains(string(m.FieldsV1.GetRawBytes()), "f:replicas")
	}
	if !owned {
		t.Errorf("who applied the scale does not own spec.replicas: %+v", d.ManagedFields)
	}

	_, err = client.CoreV1().ReplicationControllers("default").Create(ctx, &v1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec:       v1.ReplicationControllerSpec{Selector: template.Labels, Template: &template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rc, err := client.CoreV1().ReplicationControllers("default").GetScale(ctx, "rc", metav1.GetOptions{})
	if err != nil || rc.Spec.Replicas != 1 || rc.Status.Selector != "app=a" {
		t.Errorf("scale of a replication controller is %+v, %v", rc, err)
	}
}
