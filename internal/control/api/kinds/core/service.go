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

// Service needs more than storing: package services makes its storage.
var Service = registry.Kind[*v1.Service]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Service",
	Resource: "services", ShortNames: []string{"svc"}, Categories: []string{"all"},
	NamespaceScoped: true, AllowCreateOnUpdate: true, AllowUnconditionalUpdate: true,
	HasStatus:    true,
	Default:      defaults.Service,
	ValidateName: apivalidation.NameIsDNSLabel,
	Validate:     validate.Service, ValidateUpdate: validate.ServiceUpdate, ValidateStatusUpdate: validate.ServiceStatusUpdate,
	Table: table.Service,
	SelectableFields: registry.Fields[*v1.Service]{
		Keys: []string{"spec.clusterIP", "spec.type"},
		Values: func(o *v1.Service, set fields.Set) {
			set["spec.clusterIP"] = o.Spec.ClusterIP
			set["spec.type"] = string(o.Spec.Type)
		},
	},
	CustomStorage: true,
}
