// Package kinds lists the kinds of the API that are stored. Each is one file in
// the folder of its group.
package kinds

import (
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/kinds/admissionregistration"
	"github.com/berth-dev/berth/internal/control/api/kinds/apps"
	"github.com/berth-dev/berth/internal/control/api/kinds/autoscaling"
	"github.com/berth-dev/berth/internal/control/api/kinds/batch"
	"github.com/berth-dev/berth/internal/control/api/kinds/certificates"
	"github.com/berth-dev/berth/internal/control/api/kinds/coordination"
	"github.com/berth-dev/berth/internal/control/api/kinds/core"
	"github.com/berth-dev/berth/internal/control/api/kinds/discovery"
	"github.com/berth-dev/berth/internal/control/api/kinds/events"
	"github.com/berth-dev/berth/internal/control/api/kinds/flowcontrol"
	"github.com/berth-dev/berth/internal/control/api/kinds/networking"
	"github.com/berth-dev/berth/internal/control/api/kinds/node"
	"github.com/berth-dev/berth/internal/control/api/kinds/policy"
	"github.com/berth-dev/berth/internal/control/api/kinds/rbac"
	"github.com/berth-dev/berth/internal/control/api/kinds/resource"
	"github.com/berth-dev/berth/internal/control/api/kinds/scheduling"
	"github.com/berth-dev/berth/internal/control/api/kinds/storage"
	"github.com/berth-dev/berth/internal/control/api/registry"
)

// All are the kinds of all groups.
func All() []registry.Resource {
	return slices.Concat(
		core.Kinds,
		apps.Kinds,
		batch.Kinds,
		autoscaling.Kinds,
		events.Kinds,
		coordination.Kinds,
		discovery.Kinds,
		networking.Kinds,
		storage.Kinds,
		policy.Kinds,
		scheduling.Kinds,
		node.Kinds,
		rbac.Kinds,
		admissionregistration.Kinds,
		flowcontrol.Kinds,
		resource.Kinds,
		certificates.Kinds,
	)
}

// AddToScheme registers defaulting, conversions and selectable fields of all
// kinds. The types must be registered.
func AddToScheme(s *runtime.Scheme) error {
	for _, k := range All() {
		if err := k.Register(s); err != nil {
			return err
		}
	}
	// The one request that is completed and never stored.
	s.AddTypeDefaultingFunc(&authenticationv1.TokenRequest{}, func(o any) { defaults.TokenRequest(o.(*authenticationv1.TokenRequest)) })
	return nil
}
