package apps

import (
	apps "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var statefulSet = registry.Kind[*apps.StatefulSet]{
	GroupVersion: apps.SchemeGroupVersion, Kind: "StatefulSet",
	Resource: "statefulsets", ShortNames: []string{"sts"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	HasStatus:    true,
	Generation:   registry.OnSpec,
	Default:      defaults.StatefulSet,
	ValidateName: apivalidation.NameIsDNSLabel,
	Validate:     validate.StatefulSet, ValidateUpdate: validate.StatefulSetUpdate, ValidateStatusUpdate: validate.StatefulSetStatusUpdate,
	Table: table.StatefulSet,
}
