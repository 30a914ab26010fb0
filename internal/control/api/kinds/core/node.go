package core

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Node needs more than storing: package nodes makes its storage.
var Node = registry.Kind[*v1.Node]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Node",
	Resource: "nodes", ShortNames: []string{"no"},
	AllowUnconditionalUpdate: true,
	HasStatus:                true, KeepStatusOnCreate: true,
	Default:  defaults.Node,
	Validate: validate.Node, ValidateUpdate: validate.NodeUpdate, ValidateStatusUpdate: validate.NodeStatusUpdate,
	Table: table.Node,
	SelectableFields: registry.Fields[*v1.Node]{
		Keys: []string{"spec.unschedulable"},
		Values: func(o *v1.Node, set fields.Set) {
			set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
		},
	},
	CustomStorage: true,
}
