package batch

import (
	"context"
	"strconv"

	batch "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var job = registry.Kind[*batch.Job]{
	GroupVersion: batch.SchemeGroupVersion, Kind: "Job",
	Resource: "jobs", Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	DefaultGarbageCollectionPolicy: rest.OrphanDependents,
	HasStatus:                      true,
	Generation:                     registry.OnSpec,
	Default:                        defaults.Job,
	Validate:                       validate.Job, ValidateUpdate: validate.JobUpdate, ValidateStatusUpdate: validate.JobStatusUpdate,
	PrepareForCreate: prepareJob,
	Table:            table.Job,
	SelectableFields: registry.Fields[*batch.Job]{
		Keys: []string{"status.successful"},
		Values: func(o *batch.Job, set fields.Set) {
			set["status.successful"] = strconv.FormatInt(int64(o.Status.Succeeded), 10)
		},
	},
}

// Labels that tie pods to their job. The unprefixed pair is kept for clients
// that predate the prefixed one.
const (
	oldControllerUIDLabel = "controller-uid"
	oldJobNameLabel       = "job-name"
)

// prepareJob gives a new job the selector that matches its own pods and no
// others, unless the user manages the selector.
func prepareJob(_ context.Context, job *batch.Job) {
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
		oldJobNameLabel:          job.Name,
		batch.JobNameLabel:       job.Name,
		oldControllerUIDLabel:    uid,
		batch.ControllerUidLabel: uid,
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
	if _, set := job.Spec.Selector.MatchLabels[batch.ControllerUidLabel]; !set {
		job.Spec.Selector.MatchLabels[batch.ControllerUidLabel] = uid
	}
}
