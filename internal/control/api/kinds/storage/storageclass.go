package storage

import (
	storage "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/internal/control/api/defaults"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/control/api/validate"
)

var storageClass = registry.Kind[*storage.StorageClass]{
	GroupVersion: storage.SchemeGroupVersion, Kind: "StorageClass",
	Resource: "storageclasses", ShortNames: []string{"sc"},
	AllowUnconditionalUpdate: true, ReturnDeletedObject: true,
	Default:  defaults.StorageClass,
	Validate: validate.StorageClass, ValidateUpdate: validate.StorageClassUpdate,
	Table: table.StorageClass,
}
