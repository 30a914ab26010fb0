package core

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var replicationController = registry.Kind[*v1.ReplicationController]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "ReplicationController",
	Resource: "replicationcontrollers", ShortNames: []string{"rc"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	DefaultGarbageCollectionPolicy: rest.OrphanDependents,
	HasStatus:                      true,
	Generation:                     registry.OnSpec,
	Default:                        defaults.ReplicationController,
	Validate:                       validate.ReplicationController, ValidateStatusUpdate: validate.ReplicationControllerStatusUpdate,
	Table: table.ReplicationController,
	SelectableFields: registry.Fields[*v1.ReplicationController]{
		Keys: []string{"status.replicas"},
		Values: func(o *v1.ReplicationController, set fields.Set) {
			set["status.replicas"] = strconv.FormatInt(int64(o.Status.Replicas), 10)
		},
	},
}
