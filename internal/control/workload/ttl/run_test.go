package ttl

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExpires: only a finished Job with a time to live expires, counted from
// when it finished.
func TestExpires(t *testing.T) {
	end := metav1.NewTime(time.Unix(1000, 0))
	job := func(ttl int32, kind batchv1.JobConditionType, status v1.ConditionStatus) *batchv1.Job {
		return &batchv1.Job{Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &ttl},
			Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind, Status: status, LastTransitionTime: end}}}}
	}
	forever := job(0, batchv1.JobComplete, v1.ConditionTrue)
	forever.Spec.TTLSecondsAfterFinished = nil
	deleting := job(5, batchv1.JobComplete, v1.ConditionTrue)
	deleting.DeletionTimestamp = &end
	running := job(5, batchv1.JobComplete, v1.ConditionTrue)
	running.Status.Conditions = nil
	for name, c := range map[string]struct {
		job  *batchv1.Job
		want time.Time // zero: never
	}{
		"complete":             {job(5, batchv1.JobComplete, v1.ConditionTrue), time.Unix(1005, 0)},
		"failed":               {job(5, batchv1.JobFailed, v1.ConditionTrue), time.Unix(1005, 0)},
		"at once":              {job(0, batchv1.JobComplete, v1.ConditionTrue), time.Unix(1000, 0)},
		"running":              {running, time.Time{}},
		"not complete":         {job(5, batchv1.JobComplete, v1.ConditionFalse), time.Time{}},
		"about to fail":        {job(5, batchv1.JobFailureTarget, v1.ConditionTrue), time.Time{}},
		"suspended":            {job(5, batchv1.JobSuspended, v1.ConditionTrue), time.Time{}},
		"without time to live": {forever, time.Time{}},
		"being deleted":        {deleting, time.Time{}},
	} {
		at, ok := expires(c.job)
		if ok != !c.want.IsZero() || !at.Equal(c.want) {
			t.Errorf("%s: expires at %v (%v), want %v", name, at, ok, c.want)
		}
	}
}
