package cronjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
)

// Run makes scheduled Jobs until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	batch := e.Informers.Batch().V1()
	jobs := batch.Jobs().Informer()
	if err := podcontrol.IndexOwners(jobs); err != nil {
		return err
	}
	events := e.Recorder("cronjob-controller")
	q := controller.NewQueue()
	a, err1 := controller.On(ctx, batch.CronJobs().Informer(), func(_, c *batchv1.CronJob, _ bool) { q.Add(controller.Key(c)) })
	b, err2 := controller.On(ctx, jobs, func(_, j *batchv1.Job, _ bool) {
		if ref := metav1.GetControllerOfNoCopy(j); ref != nil && ref.Kind == "CronJob" {
			q.Add(j.Namespace + "/" + ref.Name)
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	sync := func(ctx context.Context, cj *batchv1.CronJob) (time.Duration, error) {
		plan := makePlan(cj, podcontrol.Indexed[*batchv1.Job](jobs, podcontrol.ByOwner, string(cj.UID)), time.Now())
		for _, ev := range plan.Events {
			events.Event(cj, ev.Type, ev.Reason, ev.Message)
		}
		if err := perform(ctx, e, cj, &plan, func(typ, reason, format string, args ...any) {
			events.Eventf(cj, typ, reason, format, args...)
		}); err != nil {
			return 0, err
		}
		_, _, err := kube.PatchStatus(ctx, e.Client.BatchV1().CronJobs(cj.Namespace), cj, cj.Status, plan.Status)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("writing the status of cron job %s: %w", controller.Key(cj), err)
		}
		return plan.Wake, nil
	}
	return e.Run(ctx, q, 4, controller.Existing(batch.CronJobs().Informer().GetIndexer(), sync))
}

func perform(ctx context.Context, e controller.Env, cj *batchv1.CronJob, plan *plan, event func(typ, reason, format string,
	args ...any)) error {
	api := e.Client.BatchV1().Jobs(cj.Namespace)
	background := metav1.DeletePropagationBackground
	remove := func(j *batchv1.Job) error {
		opts := kube.SameUID(j)
		opts.PropagationPolicy = &background
		if err := api.Delete(ctx, j.Name, opts); err != nil && !apierrors.IsNotFound(err) {
			event(v1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
			return fmt.Errorf("deleting job %s: %w", controller.Key(j), err)
		}
		event(v1.EventTypeNormal, "SuccessfulDelete", "Deleted job %s", j.Name)
		return nil
	}
	for _, j := range plan.Replace {
		if err := remove(j); err != nil {
			return err
		}
	}
	if plan.Create != nil {
		e.Note("CronJob", cj, "made job "+plan.Create.Name, journal.Fact{Name: "due", Value: plan.Time.UTC().Format(time.RFC3339)})
		got, err := api.Create(ctx, plan.Create, metav1.CreateOptions{})
		switch {
		case err == nil:
			event(v1.EventTypeNormal, "SuccessfulCreate", "Created job %s", got.Name)
			plan.Status.Active = append(plan.Status.Active, reference(got))
		case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause), apierrors.IsAlreadyExists(err):
			// Made before a crash, or not to be made: this time is served.
		default:
			event(v1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
			return fmt.Errorf("creating job %s: %w", plan.Create.Name, err)
		}
	}
	for _, j := range plan.History {
		if err := remove(j); err != nil {
			return err
		}
	}
	return nil
}
