package schedule

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-dev/berth/internal/control/schedule/place"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
)

func (l *loop) slice(s *resourceapi.ResourceSlice, gone bool) {
	if gone {
		l.snap.RemoveResourceSlice(s.Name)
		return
	}
	l.snap.SetResourceSlice(s)
	l.backlog.happened(deviceChanged, time.Now())
}

func (l *loop) deviceClass(c *resourceapi.DeviceClass, gone bool) {
	if gone {
		l.snap.RemoveDeviceClass(c.Name)
		return
	}
	l.snap.SetDeviceClass(c)
	l.backlog.happened(deviceChanged, time.Now())
}

func (l *loop) resourceClaim(c *resourceapi.ResourceClaim, gone bool) {
	if gone {
		l.snap.RemoveResourceClaim(c.Namespace, c.Name)
	} else if !l.learn(c) {
		return
	}
	l.backlog.happened(deviceChanged, time.Now())
}

// learn takes in a version of a claim unless a newer one is known: a write of
// our own is known before the watch tells of it, and of what came before it.
func (l *loop) learn(c *resourceapi.ResourceClaim) bool {
	have := l.snap.ResourceClaim(types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
	if have != nil && have.UID == c.UID {
		if order, err := resourceversion.CompareResourceVersion(c.ResourceVersion, have.ResourceVersion); err == nil && order < 0 {
			return false
		}
	}
	l.snap.SetResourceClaim(c)
	return true
}

// claimDevices writes to the pod's claims which devices they get and that the
// pod uses them; then the placement goes on.
func (l *loop) claimDevices(ctx context.Context, f *flight) {
	type write struct {
		claim *resourceapi.ResourceClaim
		plan  place.ClaimPlan
	}
	var writes []write
	for _, plan := range f.devices.Claims {
		writes = append(writes, write{l.snap.ResourceClaim(plan.Claim), plan})
	}
	pod := f.pod.Obj
	l.beside(ctx, func(call context.Context) {
		// call ends with this function, ctx with the loop.
		var written []*resourceapi.ResourceClaim
		var err error
		for _, w := range writes {
			var claim *resourceapi.ResourceClaim
			if claim, err = l.give(call, pod, w.claim, w.plan); claim != nil {
				written = append(written, claim)
			}
			if err != nil {
				err = fmt.Errorf("reserving resource claim %s: %w", w.plan.Claim, err)
				break
			}
		}
		l.post(func() {
			for _, claim := range written {
				l.learn(claim)
			}
			switch {
			case err != nil:
				l.failed(pod.UID, err.Error())
			case l.flights[pod.UID] == f:
				l.proceed(ctx, f)
			}
		})
	})
}

// give writes one claim, and returns what the API shows of it then: also after
// a failure, of which one cannot know whether it came before or after the
// write took place.
func (l *loop) give(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim, plan place.ClaimPlan) (*resourceapi.ResourceClaim,
	error) {
	api := l.Client.ResourceV1().ResourceClaims(plan.Claim.Namespace)
	now, err := l.tryGive(ctx, pod, claim, plan)
	if err == nil {
		return now, nil
	}
	// Another pod that shares the claim may have been faster: once more, on
	// what is there now.
	live, readErr := api.Get(ctx, plan.Claim.Name, metav1.GetOptions{})
	if readErr != nil {
		return nil, err
	}
	if !apierrors.IsConflict(err) || live.UID != claim.UID {
		return live, err
	}
	if now, err = l.tryGive(ctx, pod, live, plan); err != nil {
		return live, err
	}
	return now, nil
}

func (l *loop) tryGive(ctx context.Context, pod *v1.Pod, claim *resourceapi.ResourceClaim,
	plan place.ClaimPlan) (*resourceapi.ResourceClaim, error) {
	api := l.Client.ResourceV1().ResourceClaims(plan.Claim.Namespace)
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("it is being deleted")
	case claim.Status.Allocation == nil && plan.Result == nil:
		return nil, fmt.Errorf("its devices were given back")
	case claim.Status.Allocation != nil && plan.Result != nil && !equality.Semantic.DeepEqual(claim.Status.Allocation, plan.Result):
		return nil, fmt.Errorf("it got other devices meanwhile")
	}
	if claim.Status.Allocation == nil && !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
		// It keeps the claim there, and so its devices known to be taken, until
		// the last user is gone.
		finalizers := append(slices.Clone(claim.Finalizers), resourceapi.Finalizer)
		updated, err := kube.Patch(ctx, api, claim, kube.Unchanged, kube.Change{Finalizers: &finalizers})
		if err != nil {
			return nil, err
		}
		claim = updated
	}
	status := map[string]any{}
	if claim.Status.Allocation == nil {
		status["allocation"] = plan.Result
	}
	if !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
		status["reservedFor"] = append(slices.Clone(claim.Status.ReservedFor), resourceapi.ResourceClaimConsumerReference{Resource: "pods",
			Name: pod.Name, UID: pod.UID})
	}
	if len(status) == 0 {
		return claim, nil
	}
	return kube.Patch(ctx, api, claim, kube.Unchanged, kube.Change{Status: status, Subresource: "status"})
}

// releaseDevices gives back the devices of a claim that no one uses, so that
// the next attempt may choose others.
func (l *loop) releaseDevices(ctx context.Context, key types.NamespacedName) {
	claim := l.snap.ResourceClaim(key)
	change := kube.Change{Status: map[string]any{"allocation": nil, "reservedFor": nil}, Subresource: "status"}
	l.beside(ctx, func(ctx context.Context) {
		if _, err := kube.Patch(ctx, l.Client.ResourceV1().ResourceClaims(key.Namespace), claim, kube.Unchanged, change); err != nil &&
			ctx.Err() == nil {
			l.Log.Warn("giving back the devices of a claim that keeps a pod from every node failed", "claim", controller.Key(claim), "err",
				err)
		}
	})
}
