package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
)

// Limits applies a namespace's LimitRanges: it fills in what containers leave
// out and refuses what is too small, too big or too far apart.
const LimitRanger = "LimitRanger"

// limitsAnnotation tells the user what was filled in.
const limitsAnnotation = "kubernetes.io/limit-ranger"

type limits struct {
	*admission.Handler
	ranges corelisters.LimitRangeLister
}

func newLimitRanger(io.Reader) (admission.Interface, error) {
	return &limits{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
}

func (l *limits) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	ranges := f.Core().V1().LimitRanges()
	l.ranges = ranges.Lister()
	l.SetReadyFunc(allSynced(ranges.Informer()))
}

func (l *limits) ValidateInitialization() error {
	if l.ranges == nil {
		return errors.New(LimitRanger + " needs an informer factory")
	}
	return nil
}

// applying returns the ranges a request is subject to, by name.
func (l *limits) applying(a admission.Attributes) ([]*corev1.LimitRange, error) {
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		created := isFor(a, podsResource) && a.GetOperation() == admission.Create
		resized := a.GetSubresource() == "resize" && a.GetResource().GroupResource() == podsResource
		if !created && !resized || podutil.Mirror(o) {
			return nil, nil
		}
	case *corev1.PersistentVolumeClaim:
		if !isFor(a, claimsResource) {
			return nil, nil
		}
		if old, isUpdate := a.GetOldObject().(*corev1.PersistentVolumeClaim); isUpdate && sameSize(old, o) {
			// A claim that was fine when it was made must stay editable.
			return nil, nil
		}
	default:
		return nil, nil
	}
	if !l.WaitForReady() {
		return nil, errors.New("not yet ready to handle request")
	}
	ranges, err := l.ranges.LimitRanges(a.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing limit ranges: %w", err)
	}
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	return ranges, nil
}

func sameSize(a, b *corev1.PersistentVolumeClaim) bool {
	x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
	return x.Cmp(y) == 0
}

func (l *limits) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || a.GetOperation() != admission.Create {
		return nil
	}
	ranges, err := l.applying(a)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, r := range ranges {
		fillIn(pod, r)
	}
	return nil
}

func (l *limits) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	ranges, err := l.applying(a)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	var broken []error
	for _, r := range ranges {
		switch o := a.GetObject().(type) {
		case *corev1.Pod:
			broken = append(broken, checkPodLimits(o, r)...)
		case *corev1.PersistentVolumeClaim:
			broken = append(broken, checkClaimLimits(o, r)...)
		}
	}
	if len(broken) > 0 {
		return admission.NewForbidden(a, utilerrors.NewAggregate(broken))
	}
	return nil
}

// fillIn gives containers the range's default limits and requests where they
// state none, and notes on the pod what it did.
func fillIn(pod *corev1.Pod, r *corev1.LimitRange) {
	var notes []string
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		for j := range pod.Spec.Containers {
			notes = append(notes, fillContainer(&pod.Spec.Containers[j], item, "container")...)
		}
		for j := range pod.Spec.InitContainers {
			notes = append(notes, fillContainer(&pod.Spec.InitContainers[j], item, "init container")...)
		}
	}
	if len(notes) == 0 {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[limitsAnnotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
}

func fillContainer(c *corev1.Container, item *corev1.LimitRangeItem, kind string) []string {
	var notes []string
	note := func(added []string, what string) {
		if len(added) > 0 {
			notes = append(notes, fmt.Sprintf("%s %s for %s %s", strings.Join(added, ", "), what, kind, c.Name))
		}
	}
	note(fillList(&c.Resources.Requests, item.DefaultRequest), "request")
	note(fillList(&c.Resources.Limits, item.Default), "limit")
	return notes
}

func fillList(have *corev1.ResourceList, defaults corev1.ResourceList) []string {
	var added []string
	for name, quantity := range defaults {
		if _, set := (*have)[name]; set {
			continue
		}
		if *have == nil {
			*have = corev1.ResourceList{}
		}
		(*have)[name] = quantity.DeepCopy()
		added = append(added, string(name))
	}
	slices.Sort(added)
	return added
}

// checkPodLimits holds a pod's containers, and their sum, against a range.
func checkPodLimits(pod *corev1.Pod, r *corev1.LimitRange) []error {
	var broken []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for j := range containers {
					broken = append(broken, checkItem(item, containers[j].Resources.Requests, containers[j].Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			// What the runtime adds is not the user's doing.
			options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
			broken = append(broken, checkItem(item, resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options))...)
		}
	}
	return broken
}

func checkItem(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var broken []error
	add := func(err error) {
		if err != nil {
			broken = append(broken, err)
		}
	}
	for _, name := range sortedNames(item.Min) {
		add(checkMin(item.Type, name, item.Min[name], requests, limits))
	}
	for _, name := range sortedNames(item.Max) {
		add(checkMax(item.Type, name, item.Max[name], requests, limits))
	}
	for _, name := range sortedNames(item.MaxLimitRequestRatio) {
		add(checkRatio(item.Type, name, item.MaxLimitRequestRatio[name], requests, limits))
	}
	return broken
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func checkMin(of corev1.LimitType, name corev1.ResourceName, least resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[name]
	limit, limited := limits[name]
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, of, least.String())
	case request.Cmp(least) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, of, least.String(), request.String())
	case limited && limit.Cmp(least) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, of, least.String(), limit.String())
	}
	return nil
}

func checkMax(of corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[name]
	limit, limited := limits[name]
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, of, most.String())
	case limit.Cmp(most) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, of, most.String(), limit.String())
	case requested && request.Cmp(most) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, of, most.String(), request.String())
	}
	return nil
}

func checkRatio(of corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests, limits corev1.ResourceList) error {
	request, limit := requests[name], limits[name]
	switch {
	case limit.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, of, most.String())
	case request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, of,
			most.String())
	}
	if ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); ratio > most.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, of, most.String(), ratio)
	}
	return nil
}

// checkClaimLimits holds a claim's size against a range.
func checkClaimLimits(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) []error {
	var broken []error
	size, requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		if least, set := item.Min[corev1.ResourceStorage]; set {
			if err := checkMin(item.Type, corev1.ResourceStorage, least, claim.Spec.Resources.Requests, nil); err != nil {
				broken = append(broken, err)
			}
		}
		most, set := item.Max[corev1.ResourceStorage]
		switch {
		case !set:
		case !requested:
			broken = append(broken, fmt.Errorf("maximum storage usage per %s is %s.  No request is specified", item.Type, most.String()))
		case size.Cmp(most) > 0:
			broken = append(broken, fmt.Errorf("maximum storage usage per %s is %s, but request is %s", item.Type, most.String(),
				size.String()))
		}
	}
	return broken
}
