package core

import (
	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

// Namespace needs more than storing: package namespaces makes its storage.
var Namespace = registry.Kind[*v1.Namespace]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Namespace",
	Resource: "namespaces", ShortNames: []string{"ns"},
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	HasStatus:    true,
	Default:      defaults.Namespace,
	ValidateName: apivalidation.NameIsDNSLabel,
	Validate:     validate.Namespace, ValidateStatusUpdate: validate.NamespaceStatusUpdate,
	Table: table.Namespace,
	SelectableFields: registry.Fields[*v1.Namespace]{
		Keys: []string{"status.phase"},
		Values: func(o *v1.Namespace, set fields.Set) {
			set["status.phase"] = string(o.Status.Phase)
		},
	},
	CustomStorage: true,
}
