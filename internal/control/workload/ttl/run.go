// Package ttl deletes finished Jobs when their time to live has passed.
package ttl

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// expires says when a Job is to be deleted; ok is false while it is not
// finished, has no time to live, or is being deleted.
func expires(j *batchv1.Job) (at time.Time, ok bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

// Run deletes expired Jobs until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Batch().V1().Jobs()
	q := controller.NewQueue()
	seen, err := controller.On(ctx, inf.Informer(), func(_, j *batchv1.Job, gone bool) {
		if _, ok := expires(j); ok && !gone {
			q.Add(controller.Key(j))
		}
	})
	if err != nil {
		return err
	}
	if err := e.Synced(ctx, seen); err != nil {
		return nil
	}
	return e.Run(ctx, q, 4, func(ctx context.Context, key string) (time.Duration, error) {
		ns, name := controller.Split(key)
		j, err := inf.Lister().Jobs(ns).Get(name)
		if err != nil {
			return 0, nil
		}
		at, ok := expires(j)
		if !ok {
			return 0, nil
		}
		if left := time.Until(at); left > 0 {
			return left, nil
		}
		// Live: the time to live may have been raised since.
		j, err = e.Client.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("reading job %s: %w", key, err)
		}
		if at, ok = expires(j); !ok {
			return 0, nil
		}
		if left := time.Until(at); left > 0 {
			return left, nil
		}
		opts := kube.SameUID(j)
		fg := metav1.DeletePropagationForeground
		opts.PropagationPolicy = &fg
		opts.Preconditions.ResourceVersion = &j.ResourceVersion
		switch err := e.Client.BatchV1().Jobs(ns).Delete(ctx, name, opts); {
		case apierrors.IsNotFound(err):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("deleting expired job %s: %w", key, err)
		}
		e.Note("Job", j, "deleted", journal.Fact{Name: "expired", Value: at.UTC().Format(time.RFC3339)})
		return 0, nil
	})
}
