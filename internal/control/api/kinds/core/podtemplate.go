package core

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var podTemplate = registry.Kind[*v1.PodTemplate]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "PodTemplate",
	Resource:        "podtemplates",
	NamespaceScoped: true, AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Generation:   registry.OnContent,
	Default:      defaults.PodTemplate,
	Validate:     validate.PodTemplate,
	Table:        table.PodTemplate,
	NoWatchCache: true,
}
