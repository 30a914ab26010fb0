package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

type reconciler struct {
	controller.Env
	pods  *podcontrol.Pods
	queue *controller.Queue
	list  batchlisters.JobLister

	mu sync.Mutex
	// freed are pods whose finalizer is gone by our own hand while the cache
	// still shows it: they must not be counted for it.
	freed map[types.UID]bool
}

// orphanKey marks queue keys that are pods without a Job.
const orphanKey = "pod:"

// managedBy is the controller name under which this one runs Jobs; Jobs that
// name another in spec.managedBy are left alone.
const managedBy = batchv1.JobControllerName

// Run runs Jobs until the context ends.
func Run(ctx context.Context, e controller.Env) error {
	inf := e.Informers.Batch().V1().Jobs()
	pods, err := podcontrol.NewPods(e, "job-controller")
	if err != nil {
		return err
	}
	c := &reconciler{Env: e, pods: pods, queue: controller.NewQueue(), list: inf.Lister(), freed: map[types.UID]bool{}}
	a, err1 := controller.On(ctx, inf.Informer(), func(_, j *batchv1.Job, gone bool) {
		if gone {
			for _, p := range podcontrol.Indexed[*v1.Pod](pods.Informer, podcontrol.ByOwner, string(j.UID)) {
				c.queue.Add(orphanKey + controller.Key(p))
			}
			return
		}
		c.queue.Add(controller.Key(j))
	})
	b, err2 := pods.Watch(ctx, func(ref *metav1.OwnerReference, p *v1.Pod) {
		if ref.Kind == "Job" {
			c.forgetFreed(p)
			if tracked(p) && p.DeletionTimestamp != nil {
				c.queue.Add(orphanKey + controller.Key(p))
			}
			c.queue.Add(p.Namespace + "/" + ref.Name)
		}
	}, func(p *v1.Pod) {
		if tracked(p) {
			c.queue.Add(orphanKey + controller.Key(p))
		}
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := e.Synced(ctx, a, b); err != nil {
		return nil
	}
	job := controller.Existing(inf.Informer().GetIndexer(), c.sync)
	return e.Run(ctx, c.queue, 8, func(ctx context.Context, key string) (time.Duration, error) {
		if pod, ok := parseOrphanKey(key); ok {
			return 0, c.freeOrphan(ctx, pod)
		}
		return job(ctx, key)
	})
}

func (c *reconciler) sync(ctx context.Context, j *batchv1.Job) (time.Duration, error) {
	if m := j.Spec.ManagedBy; m != nil && *m != managedBy {
		return 0, nil
	}
	sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil || sel.Empty() {
		return 0, nil
	}
	pods, err := c.pods.Claimed(ctx, j, podcontrol.Owner(j, "batch/v1", "Job"), sel, func(ctx context.Context) (metav1.Object, error) {
		return c.Client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
	})
	if err != nil {
		return 0, err
	}
	plan := Make(Input{Job: j, Pods: c.withoutFreed(pods), Now: time.Now()})
	// The status first: an outcome must be on record before the finalizer that
	// protects it goes.
	if err := c.writeStatus(ctx, j, &plan); err != nil {
		return 0, err
	}
	return plan.Wake, c.perform(ctx, j, &plan)
}

func (c *reconciler) writeStatus(ctx context.Context, j *batchv1.Job, plan *Plan) error {
	_, changed, err := kube.PatchStatus(ctx, c.Client.BatchV1().Jobs(j.Namespace), j, j.Status, plan.Status)
	if err == nil && !changed {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the status of job %s: %w", controller.Key(j), err)
	}
	for _, ev := range plan.Events {
		c.pods.Recorder.Event(j, ev.Type, ev.Reason, ev.Message)
	}
	return nil
}

func (c *reconciler) perform(ctx context.Context, j *batchv1.Job, plan *Plan) error {
	if len(plan.Because) > 0 {
		c.Note("Job", j, fmt.Sprintf("creating %d and deleting %d pods", len(plan.Create), len(plan.Delete)), plan.Because...)
	}
	err1 := podcontrol.All(0, len(plan.Finished), func(i int) error { return c.untrack(ctx, plan.Finished[i]) })
	err2 := podcontrol.All(0, len(plan.Delete), func(i int) error {
		if plan.Uncount {
			if err := c.untrack(ctx, plan.Delete[i]); err != nil {
				return err
			}
		}
		return c.pods.Delete(ctx, j, plan.Delete[i])
	})
	_, err3 := podcontrol.Batch(len(plan.Create), func(i int) error {
		_, err := c.pods.Create(ctx, j, j.UID, newPod(j, plan.Create[i]))
		if apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	})
	return errors.Join(err1, err2, err3)
}

// newPod makes a pod of the Job.
func newPod(j *batchv1.Job, c podCreation) *v1.Pod {
	name := j.Name
	if c.Index >= 0 {
		name += "-" + strconv.Itoa(c.Index)
	}
	pod := podcontrol.FromTemplate(&j.Spec.Template, j.Namespace, name, podcontrol.Owner(j, "batch/v1", "Job"))
	if !slices.Contains(pod.Finalizers, Finalizer) {
		pod.Finalizers = append(pod.Finalizers, Finalizer)
	}
	if c.Index < 0 {
		return pod
	}
	index := strconv.Itoa(c.Index)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = index
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = index
	if j.Spec.BackoffLimitPerIndex != nil {
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(c.Failures)
		if c.Ignored > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(c.Ignored)
		}
	}
	pod.Spec.Hostname = j.Name + "-" + index
	addIndexEnv(&pod.Spec)
	return pod
}

// addIndexEnv gives every container its index in JOB_COMPLETION_INDEX.
func addIndexEnv(spec *v1.PodSpec) {
	const name = "JOB_COMPLETION_INDEX"
	path := fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			if !slices.ContainsFunc(list[i].Env, func(e v1.EnvVar) bool { return e.Name == name }) {
				list[i].Env = append(list[i].Env,
					v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}})
			}
		}
	}
}

// untrack takes our finalizer off a pod; one that is gone is fine.
func (c *reconciler) untrack(ctx context.Context, p *v1.Pod) error {
	if !tracked(p) {
		return nil
	}
	_, err := kube.Patch(ctx, c.Client.CoreV1().Pods(p.Namespace), p, kube.SameObject, kube.Change{Unfinalize: Finalizer, Strategic: true})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("taking the finalizer off pod %s: %w", controller.Key(p), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed[p.UID] = true
	return nil
}

// forgetFreed forgets a freed pod once the cache shows it without the finalizer, or no
// longer shows it.
func (c *reconciler) forgetFreed(p *v1.Pod) {
	_, there, err := c.pods.Informer.GetIndexer().GetByKey(controller.Key(p))
	if tracked(p) && there && err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.freed, p.UID)
}

func (c *reconciler) withoutFreed(pods []*v1.Pod) []*v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.freed) == 0 {
		return pods
	}
	pods = slices.Clone(pods)
	for i, p := range pods {
		if c.freed[p.UID] && tracked(p) {
			p = p.DeepCopy()
			p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == Finalizer })
			pods[i] = p
		}
	}
	return pods
}

// parseOrphanKey returns the pod key of a queue key that is of an orphan pod.
func parseOrphanKey(key string) (string, bool) {
	if len(key) > len(orphanKey) && key[:len(orphanKey)] == orphanKey {
		return key[len(orphanKey):], true
	}
	return "", false
}

// freeOrphan releases a pod whose Job no longer exists.
func (c *reconciler) freeOrphan(ctx context.Context, key string) error {
	o, ok, err := c.pods.Informer.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return err
	}
	p := o.(*v1.Pod)
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		j, err := c.list.Jobs(p.Namespace).Get(ref.Name)
		if err == nil && j.UID == ref.UID {
			return nil // its own sync takes care
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		// The cache may be behind: ask.
		live, err := c.Client.BatchV1().Jobs(p.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && live.UID == ref.UID {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading the job of pod %s: %w", key, err)
		}
	}
	return c.untrack(ctx, p)
}
