package api

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Labels that tie pods to their job. The unprefixed pair is kept for clients
// that predate the prefixed one.
const (
	oldControllerUIDLabel = "controller-uid"
	oldJobNameLabel       = "job-name"
)

// prepareJob gives a new job the selector that matches its own pods and no
// others, unless the user manages the selector.
func prepareJob(_ context.Context, obj runtime.Object) {
	job := obj.(*batchv1.Job)
	if job.Spec.ManualSelector != nil && *job.Spec.ManualSelector {
		return
	}
	labels := job.Spec.Template.Labels
	if labels == nil {
		labels = map[string]string{}
		job.Spec.Template.Labels = labels
	}
	uid := string(job.UID)
	for key, value := range map[string]string{
		oldJobNameLabel:            job.Name,
		batchv1.JobNameLabel:       job.Name,
		oldControllerUIDLabel:      uid,
		batchv1.ControllerUidLabel: uid,
	} {
		// A label the user set stays, so that validation can refuse a wrong one.
		if _, set := labels[key]; !set {
			labels[key] = value
		}
	}
	if job.Spec.Selector == nil {
		job.Spec.Selector = &metav1.LabelSelector{}
	}
	if job.Spec.Selector.MatchLabels == nil {
		job.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, set := job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !set {
		job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = uid
	}
}
