package api

import (
	"context"
	"errors"
	"fmt"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// enablePriorityAndFairness puts requests into queues by priority and sender instead of
// rejecting all of them above a limit.
func (s *Server) enablePriorityAndFairness(conf *genericapiserver.Config) {
	conf.FlowControl = flowcontrol.New(s.shared, s.client.FlowcontrolV1(),
		conf.MaxRequestsInFlight+conf.MaxMutatingRequestsInFlight)
	// No one counts objects (that would poll etcd), so every list is weighed the
	// same.
	conf.StorageObjectCountTracker = flowcontrolrequest.NewStorageObjectCountTracker()
}

// ensureFairness keeps the objects that describe the default queues. Users may
// change the suggested ones; the mandatory ones and those annotated
// autoupdate-spec=true follow this program.
func (s *Server) ensureFairness(ctx context.Context) error {
	client := s.client.FlowcontrolV1()
	levels := keeper[*flowcontrolv1.PriorityLevelConfiguration]{
		kind: "priority level",
		list: func() (map[string]*flowcontrolv1.PriorityLevelConfiguration, error) {
			list, err := client.PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
			return byName(list.Items, func(o *flowcontrolv1.PriorityLevelConfiguration) string { return o.Name }), err
		},
		create: func(o *flowcontrolv1.PriorityLevelConfiguration) error {
			_, err := client.PriorityLevelConfigurations().Create(ctx, o, metav1.CreateOptions{})
			return err
		},
		update: func(have, want *flowcontrolv1.PriorityLevelConfiguration) error {
			if apiequality.Semantic.DeepEqual(have.Spec, want.Spec) {
				return nil
			}
			have = have.DeepCopy()
			have.Spec = want.Spec
			_, err := client.PriorityLevelConfigurations().Update(ctx, have, metav1.UpdateOptions{})
			return err
		},
	}
	schemas := keeper[*flowcontrolv1.FlowSchema]{
		kind: "flow schema",
		list: func() (map[string]*flowcontrolv1.FlowSchema, error) {
			list, err := client.FlowSchemas().List(ctx, metav1.ListOptions{})
			return byName(list.Items, func(o *flowcontrolv1.FlowSchema) string { return o.Name }), err
		},
		create: func(o *flowcontrolv1.FlowSchema) error {
			_, err := client.FlowSchemas().Create(ctx, o, metav1.CreateOptions{})
			return err
		},
		update: func(have, want *flowcontrolv1.FlowSchema) error {
			if apiequality.Semantic.DeepEqual(have.Spec, want.Spec) {
				return nil
			}
			have = have.DeepCopy()
			have.Spec = want.Spec
			_, err := client.FlowSchemas().Update(ctx, have, metav1.UpdateOptions{})
			return err
		},
	}
	return errors.Join(
		levels.ensure(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations),
		schemas.ensure(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas))
}

// keeper keeps a set of objects of one kind: it creates what is missing and
// updates what follows this program.
type keeper[T interface {
	metav1.Object
	DeepCopy() T
}] struct {
	kind   string
	list   func() (map[string]T, error)
	create func(T) error
	update func(have, want T) error
}

func (k keeper[T]) ensure(mandatory, suggested []T) error {
	have, err := k.list()
	if err != nil {
		return fmt.Errorf("listing %ss: %w", k.kind, err)
	}
	var errs []error
	for _, set := range []struct {
		objects []T
		follow  bool
	}{{mandatory, true}, {suggested, false}} {
		for _, want := range set.objects {
			if err := k.ensureOne(have, want.DeepCopy(), set.follow); err != nil && !apierrors.IsAlreadyExists(err) &&
				!apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("writing %s %s: %w", k.kind, want.GetName(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func (k keeper[T]) ensureOne(have map[string]T, want T, mandatory bool) error {
	stored, exists := have[want.GetName()]
	if !exists {
		want.SetAnnotations(map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"})
		return k.create(want)
	}
	if mandatory || stored.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] == "true" {
		return k.update(stored, want)
	}
	return nil
}

func byName[T any](items []T, name func(*T) string) map[string]*T {
	out := make(map[string]*T, len(items))
	for i := range items {
		out[name(&items[i])] = &items[i]
	}
	return out
}
