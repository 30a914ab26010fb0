package pods

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/berth-dev/berth/internal/control/api/disruption"
	"github.com/berth-dev/berth/internal/podutil"
)

// evictionRetry spaces the attempts when a budget or the pod is being written
// by another party.
var evictionRetry = wait.Backoff{Steps: 20, Duration: 500 * time.Millisecond, Factor: 1, Jitter: 0.1}

const tooManyBudgets = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."

// evictionREST deletes a pod if its disruption budget allows: POST pods/{name}/eviction.
type evictionREST struct {
	store  *registry.Store
	status rest.Updater
	deps   Deps
}

func (r *evictionREST) New() runtime.Object   { return &policyv1.Eviction{} }
func (r *evictionREST) Destroy()              {}
func (r *evictionREST) NamespaceScoped() bool { return true }

// GroupVersionKind says that the subresource of a core object takes an object
// of another group.
func (r *evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion also lets old clients send policy/v1beta1.
func (r *evictionREST) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == policyv1beta1.SchemeGroupVersion
}

// Create evicts the pod, or answers why not: 429 while the budget is exhausted
// or unsettled.
func (r *evictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	evicted, deletion, err := readEviction(obj)
	if err != nil {
		return nil, err
	}
	if name != evicted {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if len(deletion.DryRun) == 0 {
		deletion.DryRun = options.DryRun
	}

	return r.retryEviction(ctx, name, deletion)
}

// retryEviction repeats the attempt while others write the budget or the pod,
// for as long as the client waits.
func (r *evictionREST) retryEviction(ctx context.Context, name string, deletion *metav1.DeleteOptions) (runtime.Object, error) {
	var answer *metav1.Status
	var target types.UID
	err := wait.ExponentialBackoffWithContext(ctx, evictionRetry, func(ctx context.Context) (bool, error) {
		pod, err := getPod(ctx, r.store, name)
		if err != nil {
			return false, err
		}
		if target == "" {
			target = pod.UID
		}
		if pod.UID != target {
			return false, apierrors.NewNotFound(podResource, name) // gone meanwhile; its successor is not what was asked for
		}
		if err := checkPreconditions(pod, deletion); err != nil {
			return false, err
		}
		answer, err = r.attempt(ctx, pod, deletion)
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return err == nil, err
	})
	switch {
	case wait.Interrupted(err):
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("couldn't update PodDisruptionBudget of pod %q due to conflicts", name), 10)
	case err != nil:
		return nil, err
	}
	return answer, nil
}

func readEviction(obj runtime.Object) (string, *metav1.DeleteOptions, error) {
	var name string
	var options *metav1.DeleteOptions
	switch e := obj.(type) {
	case *policyv1.Eviction:
		name, options = e.Name, e.DeleteOptions
	case *policyv1beta1.Eviction:
		name, options = e.Name, e.DeleteOptions
	default:
		return "", nil, apierrors.NewBadRequest(fmt.Sprintf("not an Eviction object: %T", obj))
	}
	if options == nil {
		return name, &metav1.DeleteOptions{}, nil
	}
	return name, options.DeepCopy(), nil
}

func checkPreconditions(pod *v1.Pod, options *metav1.DeleteOptions) error {
	p := options.Preconditions
	switch {
	case p == nil:
	case p.UID != nil && *p.UID != pod.UID:
		return apierrors.NewConflict(podResource, pod.Name,
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and "+
				"then recreated", *p.UID, pod.UID))
	case p.ResourceVersion != nil && *p.ResourceVersion != pod.ResourceVersion:
		return apierrors.NewConflict(podResource, pod.Name,
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might "+
				"have been modified", *p.ResourceVersion, pod.ResourceVersion))
	}
	return nil
}

// attempt makes one try against the pod as just read.
func (r *evictionREST) attempt(ctx context.Context, pod *v1.Pod, options *metav1.DeleteOptions) (*metav1.Status, error) {
	if budgetless(pod) {
		// Whether it may go depends on the phase just read, so the deletion
		// insists on that version of the pod.
		return r.remove(ctx, pod, options, true)
	}
	all, err := r.deps.Disruptions.Budgets(ctx, pod.Namespace)
	if err != nil {
		return nil, err
	}
	budgets, err := disruption.Matching(pod, all)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	switch {
	case len(budgets) == 0:
		return r.remove(ctx, pod, options, false)
	case len(budgets) > 1:
		return &metav1.Status{Status: metav1.StatusFailure, Message: tooManyBudgets, Code: 500}, nil
	case !podutil.Ready(pod) && disruption.UnhealthyMayGo(&budgets[0]):
		return r.remove(ctx, pod, options, true)
	}
	budget := budgets[0].DeepCopy()
	if err := disruption.TakeDisruption(budget, pod.Name, r.deps.Now()); err != nil {
		return nil, err
	}
	if !dryrun.IsDryRun(options.DryRun) {
		if err := r.deps.Disruptions.UpdateStatus(ctx, budget); err != nil {
			if apierrors.IsConflict(err) {
				return nil, err
			}
			return nil, fmt.Errorf("spending disruption budget %s for pod %s: %w", budget.Name, pod.Name, err)
		}
	}
	// From here on the disruption is paid for: lost races on the pod are
	// retried below without paying again.
	return r.remove(ctx, pod, options, false)
}

// budgetless pods do not serve anybody, or are already going: no budget speaks
// about them.
func budgetless(pod *v1.Pod) bool {
	return podutil.Terminal(pod) || pod.Status.Phase == v1.PodPending || pod.DeletionTimestamp != nil
}

// remove marks the pod as disrupted and deletes it. With exact set, both happen
// only to the version that was read.
func (r *evictionREST) remove(ctx context.Context, pod *v1.Pod, options *metav1.DeleteOptions, exact bool) (*metav1.Status, error) {
	options = options.DeepCopy()
	version, err := r.markDisrupted(ctx, pod, options, exact)
	if err != nil {
		return nil, err
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if exact || options.Preconditions.ResourceVersion != nil {
		options.Preconditions.ResourceVersion = &version
	}
	options.Preconditions.UID = &pod.UID
	if _, _, err := r.store.Delete(ctx, pod.Name, rest.ValidateAllObjectFunc, options); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// markDisrupted writes the condition by which controllers tell an eviction from
// a failure, and returns the pod's new resourceVersion.
func (r *evictionREST) markDisrupted(ctx context.Context, pod *v1.Pod, options *metav1.DeleteOptions, exact bool) (string, error) {
	if dryrun.IsDryRun(options.DryRun) {
		return pod.ResourceVersion, nil
	}
	mark := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		latest := old.(*v1.Pod).DeepCopy()
		if latest.UID != pod.UID || exact && latest.ResourceVersion != pod.ResourceVersion {
			return nil, apierrors.NewConflict(podResource, pod.Name, fmt.Errorf("the pod changed while it was being evicted"))
		}
		setCondition(&latest.Status, v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, ObservedGeneration: latest.Generation,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		}, metav1.NewTime(r.deps.Now()))
		return latest, nil
	}
	out, _, err := r.status.Update(ctx, pod.Name, rest.DefaultUpdatedObjectInfo(nil, mark),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return "", err
	}
	return out.(*v1.Pod).ResourceVersion, nil
}
