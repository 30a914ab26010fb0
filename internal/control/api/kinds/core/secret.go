package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var secret = registry.Kind[*v1.Secret]{
	GroupVersion: v1.SchemeGroupVersion, Kind: "Secret",
	Resource:        "secrets",
	NamespaceScoped: true, AllowUnconditionalUpdate: true,
	Default:  defaults.Secret,
	Validate: validate.Secret, ValidateUpdate: validate.SecretUpdate,
	Table: table.Secret,
	SelectableFields: registry.Fields[*v1.Secret]{
		Keys: []string{"type"},
		Values: func(o *v1.Secret, set fields.Set) {
			set["type"] = string(o.Type)
		},
	},
}
